import type { AnswerEnd, Message } from './server.js';

/** What the server says of a question, in a part `data-approval` whose id is that of the tool call. */
export type Approval = {
  state: 'pending' | 'approved' | 'denied' | 'expired' | 'revoked' | 'superseded' | 'lapsed';
  description: string;
  /** Milliseconds since 1970. */
  requestedAt: number;
  expiresAt?: number;
  /** The input holds characters that a reader does not see as they are. */
  hidesCharacters?: true;
  /** What the user may change of the input: all of it, or the fields with these names. */
  editable?: true | string[];
  /** The input of the model, and the one with which the call ran, if the user changed it. */
  originalInput?: unknown;
  changedInput?: unknown;
  /** The agents that ask, from the outermost one: its tool is one of the chat's. */
  agents?: string[];
  /** Another user approves: the approval of this user does not count. */
  decidedByOthers?: true;
  /** It is pending, and a newer message does not close it. */
  staysOpen?: true;
  approvedBy?: string;
  respondedAt?: number;
  reason?: string;
};

/** A tool call that has or had an approval request. */
export type AskingPart = {
  type: string;
  toolCallId: string;
  state: string;
  approval?: { id: string; approved?: boolean; reason?: string } | undefined;
};

/**
 * The newest that the server says of the approval of a call. A later message than that of the call may hold it:
 * the client changes no part of an earlier message.
 */
export function approvalOf(messages: readonly Message[], toolCallId: string): Approval | undefined {
  for (const { parts } of messages.toReversed()) {
    const known: readonly { type: string; id?: unknown; data?: unknown }[] = parts;
    const newest = known.findLast(({ type, id }) => type === 'data-approval' && id === toolCallId);
    if (newest) return newest.data as Approval;
  }
  return undefined;
}

/**
 * Whether a call waits for an answer of the user: only such a call gets buttons.
 *
 * A part keeps the state `approval-requested` when a newer message has closed its question, and when another page
 * or user has answered it.
 */
export function isQuestion(messages: readonly Message[], part: AskingPart): boolean {
  if (part.state !== 'approval-requested') return false;
  const asked = approvalOf(messages, part.toolCallId);
  const isLast = messages.at(-1)?.parts.includes(part) ?? false;
  return (asked?.state ?? 'pending') === 'pending' && (isLast || asked?.staysOpen === true);
}

/**
 * How the answer in a message has ended, if it is not complete: it was stopped, has failed or was interrupted, or
 * has reached the limit of the model. `undefined` for a complete answer, and while it is written.
 */
export function answerEnd({ metadata }: Message): Exclude<AnswerEnd, 'finished'> | undefined {
  const own = (metadata as { 'ui-message-stream'?: { ended?: AnswerEnd | null } } | null | undefined)?.['ui-message-stream'];
  return own?.ended && own.ended !== 'finished' ? own.ended : undefined;
}

/**
 * A text in which each character that cannot be seen, or changes how others look, is spelled out. What a user
 * approves is shown with it.
 */
export function visible(text: string): string {
  return text.replace(
    /[\p{Cf}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\p{Cs}\u2800\0-\x08\x0b-\x1f\x7f-\x9f]/gu,
    character => `\\u{${character.codePointAt(0)?.toString(16)}}`,
  );
}

/** An input or output of a tool as text, with `visible`. */
export function visibleJson(value: unknown): string {
  return visible(JSON.stringify(value, null, 2) ?? '');
}
