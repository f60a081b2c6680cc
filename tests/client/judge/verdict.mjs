// How one version of the real client reads one response.
import { isDeepStrictEqual } from 'node:util';
import { byteStream, chunksOf } from '../wire.mjs';

// The reducer shows a change only with the next chunk that writes. This chunk writes and changes
// nothing but its own part, so the snapshot without this part is the final state.
const PROBE = { type: 'data-judge-probe', data: null };

// Thrown before the reducer sees the chunk; everything else is thrown by the reducer.
const READING_ERRORS = ['AI_TypeValidationError', 'AI_JSONParseError'];

// A schema error quotes the whole chunk and lists every variant that does not match.
const MESSAGE_LIMIT = 500;

/**
 * Sends `sse` through the version's own SSE parser, schema and reducer, continuing `message` if
 * there is one. Reading ends at an `error` chunk, as in `Chat`. With `readOn` it continues, as in
 * `readUIMessageStream`.
 */
export async function verdict(client, sse, { message, readOn = false }) {
  let read = 0;
  let errorText = null;
  let errorChunks = 0;
  let thrown = null;
  const counting = new TransformStream({
    transform(chunk, controller) {
      read++;
      const isError = chunk.type === 'error';
      // Counted before the chunk is passed on: the reducer runs within `enqueue`.
      if (isError) {
        errorText ??= chunk.errorText;
        errorChunks++;
      }
      controller.enqueue(chunk);
      if (isError && !readOn) {
        controller.enqueue({ ...PROBE });
        controller.terminate();
      }
    },
    flush: controller => controller.enqueue({ ...PROBE }),
  });
  const snapshots = client.readUIMessageStream({
    message: structuredClone(message), // the reducer changes it
    stream: chunksOf(client, byteStream(sse)).pipeThrough(counting),
    onError(error) {
      if (errorChunks > 0) errorChunks--;
      else thrown = error;
    },
  });

  let shown = null;
  let final = null;
  for await (const snapshot of snapshots) {
    if (snapshot.parts.at(-1)?.type === PROBE.type)
      final = { ...snapshot, parts: snapshot.parts.slice(0, -1) };
    else shown = snapshot;
  }
  final ??= shown ?? message ?? null;

  const onScreen = shown ?? message;
  const resubmits = predicate =>
    errorText === null &&
    thrown === null &&
    onScreen != null &&
    predicate?.({ messages: [onScreen] }) === true;
  return {
    rejected: thrown && {
      ...described(thrown),
      index: READING_ERRORS.includes(thrown.name) ? read : read - 1,
    },
    errorText,
    message: final,
    ...(isDeepStrictEqual(shown, final) ? {} : { shown }),
    resubmits: {
      approvals: resubmits(client.lastAssistantMessageIsCompleteWithApprovalResponses),
      toolCalls: resubmits(client.lastAssistantMessageIsCompleteWithToolCalls),
    },
  };
}

/** Whether the SDK's server would accept `messages`. */
export async function validation(client, messages) {
  const { success, error } = await client.safeValidateUIMessages({ messages });
  return { valid: success, error: success ? null : described(error) };
}

const described = ({ name, message }) => ({
  name,
  message: String(message).slice(0, MESSAGE_LIMIT),
});
