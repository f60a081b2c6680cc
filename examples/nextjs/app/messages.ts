import type { DynamicToolUIPart, ToolUIPart, UIMessage } from 'ai';

/** The tools of the chat server: what the model passes, and what comes back. */
export type Tools = {
  get_weather: { input: { city: string }; output: unknown };
  delete_file: { input: { path: string }; output: unknown };
  transfer: { input: { to: string; amount: number }; output: unknown };
  get_location: { input: Record<string, never>; output: { latitude: number; longitude: number } };
};

/** What the server says of a question, in a part whose id is the tool call's. */
export type Data = {
  approval: {
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
};

export type ChatMessage = UIMessage<unknown, Data, Tools>;

/** A call of one of the tools above, or of one this page has never heard of. */
export type ToolPart = ToolUIPart<Tools> | DynamicToolUIPart;
