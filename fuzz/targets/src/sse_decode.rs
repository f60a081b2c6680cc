//! Bytes in pieces decode like the whole. The first byte selects where to cut.

use ui_message_stream::chunk::ReceivedChunk;
use ui_message_stream::sse::Decoder;

/// Runs the target on one input.
///
/// # Panics
/// If the input shows a fault.
pub fn run(data: &[u8]) {
    let Some((&size, bytes)) = data.split_first() else {
        return;
    };
    let whole = decode([bytes].into_iter());
    let pieces = decode(bytes.chunks(usize::from(size).max(1)));
    assert_eq!(whole, pieces);
    for text in whole {
        if let Ok(received) = ReceivedChunk::parse(&text) {
            let written = serde_json::to_string(&received).expect("a chunk serializes");
            let again = ReceivedChunk::parse(&written).expect("what is written is read");
            assert_eq!(serde_json::to_string(&again).expect("a chunk serializes"), written);
        }
    }
}

fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<String> {
    let mut decoder = Decoder::default();
    for piece in pieces {
        decoder.push(piece);
    }
    std::iter::from_fn(|| decoder.poll()).map(|event| event.data).collect()
}
