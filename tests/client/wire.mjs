// Bytes and JSON as they travel between server and client.

/** Returns `value` after conversion to JSON and back. Keys whose value is `undefined` are dropped. */
export const json = value => (value === undefined ? null : JSON.parse(JSON.stringify(value)));

/** The body of a response that streams `chunks`. */
export const sseBody = chunks =>
  chunks.map(chunk => `data: ${JSON.stringify(chunk)}\n\n`).join('') + 'data: [DONE]\n\n';

/** `text` as a stream of bytes, in slices of `sliceSize` bytes (0: all at once). */
export function byteStream(text, sliceSize = 0) {
  const bytes = new TextEncoder().encode(text);
  return new ReadableStream({
    start(controller) {
      const step = sliceSize || Math.max(bytes.length, 1);
      for (let i = 0; i < bytes.length; i += step) controller.enqueue(bytes.slice(i, i + step));
      controller.close();
    },
  });
}

/** The chunks that the transport of this version reads from `bytes`, with its own parser and schema. */
export const chunksOf = (client, bytes) =>
  new client.DefaultChatTransport().processResponseStream(bytes);
