// Bytes and JSON as they travel between server and client.

/** What `value` is after a trip through JSON: keys that are `undefined` vanish. */
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

/** The chunks that the version's own transport reads from `bytes`: SSE, JSON, then its schema. */
export const chunksOf = (client, bytes) =>
  new client.DefaultChatTransport().processResponseStream(bytes);
