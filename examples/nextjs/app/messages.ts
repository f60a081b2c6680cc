import type { DynamicToolUIPart, ToolUIPart, UIMessage } from 'ai';
import type { Approval } from 'ui-message-stream-client';
import type { Tools } from './tools';

export type ChatMessage = UIMessage<unknown, { approval: Approval }, Tools>;

/** A call of one of the server's tools, or of one this page has never heard of. */
export type ToolPart = ToolUIPart<Tools> | DynamicToolUIPart;
