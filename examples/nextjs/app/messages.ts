import type { DynamicToolUIPart, ToolUIPart, UIMessage } from 'ai';
import type { Approval } from 'ui-message-stream-client';

/** The tools of the chat server: what the model passes, and what comes back. */
export type Tools = {
  get_weather: { input: { city: string }; output: unknown };
  delete_file: { input: { path: string }; output: unknown };
  transfer: { input: { to: string; amount: number }; output: unknown };
  get_location: { input: Record<string, never>; output: { latitude: number; longitude: number } };
};

export type ChatMessage = UIMessage<unknown, { approval: Approval }, Tools>;

/** A call of one of the tools above, or of one this page has never heard of. */
export type ToolPart = ToolUIPart<Tools> | DynamicToolUIPart;
