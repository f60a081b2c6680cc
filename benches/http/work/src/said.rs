//! An answer as a flat list, so that an arm only has to map each item to a value of its own.

use crate::{Call, Step};

/// Something that an agent emits.
#[derive(Debug, Clone, Copy)]
pub enum Said {
    /// A delta of the text.
    Text(&'static str),
    /// The input of a call begins.
    Begin(&'static Call),
    /// A piece of the input of a call.
    Piece(&'static Call, &'static str),
    /// The input of a call is complete.
    Input(&'static Call),
    /// A call has returned its output.
    Output(&'static Call),
}

/// Lists what an agent emits in these steps. The list stays in memory, so call this once for each route.
pub fn said(steps: &'static [Step]) -> &'static [Said] {
    let mut said = Vec::new();
    for step in steps {
        said.extend(step.texts.iter().map(|text| Said::Text(text)));
        for call in &step.calls {
            said.push(Said::Begin(call));
            said.extend(call.pieces.iter().map(|piece| Said::Piece(call, piece)));
            said.extend([Said::Input(call), Said::Output(call)]);
        }
    }
    said.leak()
}
