// Made by `ui-message-stream-types`. Do not edit.

export interface Types {
  tools: {
    delete_file: {
      input: DeleteFile;
      output: Deleted;
    };
    get_location: {
      input: {};
      output: Place;
    };
    get_weather: {
      input: Weather;
      output: Report;
    };
    janitor: {
      input: AgentInput;
      output: unknown;
    };
    transfer: {
      input: Transfer;
      output: Sent;
    };
  };
  data: {};
  metadata: unknown;
}
/**
 * Deletes a file for good.
 */
export interface DeleteFile {
  path: string;
}
/**
 * Whether a file was there.
 */
export interface Deleted {
  deleted: boolean;
  path: string;
}
/**
 * Where the user is.
 */
export interface Place {
  latitude: number;
  longitude: number;
}
/**
 * Looks up the weather in a city.
 */
export interface Weather {
  city: string;
}
/**
 * The weather in a city.
 */
export interface Report {
  celsius: number;
  city: string;
  sky: string;
}
/**
 * The input of an agent that is a tool.
 */
export interface AgentInput {
  /**
   * What the agent has to do, with all that it needs to know: it does not see the conversation.
   */
  task: string;
}
/**
 * Sends money to somebody.
 */
export interface Transfer {
  amount: number;
  to: string;
}
/**
 * A transfer that was made.
 */
export interface Sent {
  amount: number;
  sent: boolean;
  to: string;
}

export type Tools = Types['tools'];
export type DataParts = Types['data'];
export type Metadata = Types['metadata'];
