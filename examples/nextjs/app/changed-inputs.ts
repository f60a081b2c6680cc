import { isToolUIPart } from 'ai';
import type { ChatMessage, ToolPart } from './messages';

/**
 * The inputs that the user has changed before approving, by the ids of the approvals. They go with each
 * request, because an answer of `useChat` cannot hold an input.
 *
 * They stay after the answer was sent: it may be sent again, and must not run the input of the model then.
 * The server ignores an input after the first answer to its request. It refuses with status 400 an input that
 * the tool does not accept. Then they are forgotten, and the questions are asked again.
 */
export const changedInputs: Record<string, unknown> = {};

/** Opens the questions again that were approved with a changed input, and forgets these inputs. */
export function askedAgain(messages: ChatMessage[]): ChatMessage[] {
  return messages.map(message => ({
    ...message,
    parts: message.parts.map(part => {
      if (!isToolUIPart(part) || part.state !== 'approval-responded') return part;
      const { approved, reason, ...approval } = part.approval;
      if (!(approval.id in changedInputs)) return part;
      delete changedInputs[approval.id];
      return { ...part, state: 'approval-requested', approval } as ToolPart;
    }),
  }));
}
