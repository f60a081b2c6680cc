/**
 * The inputs that the user has changed before approving, by the ids of the approvals. They go with each
 * request, because an answer of `useChat` cannot hold an input.
 *
 * They stay until the page is closed: the same answer may be sent again, and must not run the input of the
 * model then. The server ignores an input after the first answer to its request.
 */
export const changedInputs: Record<string, unknown> = {};

/** Forgets all of them. Returns whether there was one. */
export function forgetChangedInputs(): boolean {
  const ids = Object.keys(changedInputs);
  for (const id of ids) delete changedInputs[id];
  return ids.length > 0;
}
