/** Whether an id in an address is one that this page could have made. Anybody can make a link. */
export function isChatId(id: string): boolean {
  return /^[\w-]{1,64}$/.test(id);
}
