import type { AskingPart } from './messages.js';
import type { Message } from './server.js';

/** What was answered to a call: the answer to its approval request, or its output with the new state. */
export type Answer =
  | { approved: boolean; reason?: string }
  | { state: string; output?: unknown; errorText?: string | undefined };

/**
 * The answers to questions, and the outputs of tools of the page, that the server may lack. An output of a call that
 * needs an approval waits until the server has given the call to the page: before that the server takes none.
 */
export class Answers {
  /** By the id of the approval or of the call. */
  readonly #given = new Map<string, Answer>();
  /**
   * The changed inputs, by the ids of the approvals. They stay after the answer was sent: it may be sent again, and
   * must not run the input of the model then. The server ignores an input after the first answer.
   */
  readonly #inputs = new Map<string, unknown>();

  get isEmpty(): boolean {
    return this.#given.size === 0;
  }

  /** Adds the answer to an approval request, or the output of a call. */
  add(id: string, answer: Answer, input?: unknown): void {
    this.#given.set(id, answer);
    if (input === undefined) this.#inputs.delete(id);
    else this.#inputs.set(id, input);
  }

  /** The ids of the answers that a message shows. */
  idsIn(message: Message | undefined): string[] {
    return callsOf(message).flatMap(part => (isOpen(part) ? [] : (this.#idOf(part) ?? [])));
  }

  /** The changed inputs of the calls in a message. */
  inputsIn(message: Message | undefined): Record<string, unknown> {
    const ids = callsOf(message).map(({ approval }) => approval?.id ?? '');
    return Object.fromEntries(ids.filter(id => this.#inputs.has(id)).map(id => [id, this.#inputs.get(id)]));
  }

  /** The server has these answers. */
  arrived(ids: readonly string[]): void {
    for (const id of ids) this.#given.delete(id);
  }

  /** The server has refused these answers. Returns the message with open calls again. */
  refused<M extends Message>(ids: readonly string[], message: M): M {
    const isIt = (part: AskingPart) => idsOf(part).some(id => ids.includes(id));
    // With an output that waits: it may be of the refused input.
    for (const id of [...ids, ...callsOf(message).filter(isIt).flatMap(idsOf)]) {
      this.#given.delete(id);
      this.#inputs.delete(id);
    }
    return changed(message, part => (isIt(part) ? reopened(part) : part));
  }

  /** A message of the server has come. The answers to calls that are not open in it are not needed. */
  forgetClosed(message: Message | undefined): void {
    const due = callsOf(message).flatMap(dueIn);
    for (const id of this.#given.keys()) if (!due.includes(id)) this.#given.delete(id);
  }

  /** A message with the answers to its open calls. */
  shownIn<M extends Message>(message: M): M {
    return changed(message, part => {
      const id = isOpen(part) ? this.#idOf(part) : undefined;
      return id === undefined ? part : answered(part, this.#given.get(id) as Answer);
    });
  }

  /** The id of what was given to a call, if it fits the state of the call. */
  #idOf({ state, approval, toolCallId }: AskingPart): string | undefined {
    const id = state.startsWith('approval-') ? approval?.id : toolCallId;
    return id !== undefined && state !== 'output-denied' && this.#given.has(id) ? id : undefined;
  }
}

/** The tool calls of a message. */
export const callsOf = (message: Message | undefined): readonly AskingPart[] =>
  ((message?.parts ?? []) as readonly AskingPart[]).filter(({ toolCallId }) => toolCallId !== undefined);

/** Whether a call waits for an answer or an output of the page. */
export const isOpen = ({ state }: AskingPart): boolean => state === 'approval-requested' || state.startsWith('input-');

/** The ids of what the server still takes for a call. */
function dueIn(part: AskingPart): string[] {
  if (part.state === 'approval-responded') return [part.toolCallId];
  return isOpen(part) ? idsOf(part) : [];
}

const idsOf = ({ approval, toolCallId }: AskingPart): string[] => (approval ? [approval.id, toolCallId] : [toolCallId]);

function changed<M extends Message>(message: M, change: (call: AskingPart) => AskingPart): M {
  const calls = new Set<unknown>(callsOf(message));
  return { ...message, parts: message.parts.map(part => (calls.has(part) ? change(part as AskingPart) : part)) };
}

/** A call with its answer, as the AI SDK writes it. */
function answered(part: AskingPart, answer: Answer): AskingPart {
  if (!('approved' in answer)) return { ...part, ...answer };
  return { ...part, state: 'approval-responded', approval: { ...part.approval, id: part.approval?.id ?? '', ...answer } };
}

/** A call without its answer, or without its output. */
function reopened(part: AskingPart): AskingPart {
  const { output: _, errorText: __, ...call } = part as AskingPart & { output?: unknown; errorText?: unknown };
  if (part.state !== 'approval-responded') return { ...call, state: 'input-available' };
  const { approved: _approved, reason: _reason, ...approval } = part.approval ?? { id: '' };
  return { ...call, state: 'approval-requested', approval };
}
