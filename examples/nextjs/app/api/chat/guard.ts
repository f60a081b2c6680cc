import { isIP } from 'node:net';

// The names under which browsers reach this app, besides `localhost` and addresses.
const ALLOWED_HOSTS = (process.env.ALLOWED_HOSTS ?? '').split(',').map(host => hostName(host.trim()));

/**
 * Returns why a request must not be passed on, or `undefined` if it may.
 *
 * The chat server sees neither the name in the address bar nor the origin of the page, so it cannot
 * check them.
 */
export function refusal(headers: Headers): string | undefined {
  const host = headers.get('host') ?? '';
  // A hostile page can point a name of its own at this machine (DNS rebinding). Only the `Host`
  // header then shows the difference.
  if (!isOwn(host)) return 'This app is not reached under this name. See ALLOWED_HOSTS.';
  const origin = headers.get('origin');
  const isForeign =
    origin === null
      ? headers.get('sec-fetch-site') === 'cross-site'
      : origin !== `http://${host}` && origin !== `https://${host}`;
  if (isForeign) return 'Pages of another site may not use this chat.';
}

/** The name in lower case, without a port and a trailing dot. */
function hostName(host: string): string {
  return host.toLowerCase().replace(/:\d*$/, '').replace(/\.$/, '');
}

function isOwn(host: string): boolean {
  const name = hostName(host);
  return (
    name === 'localhost' ||
    name.endsWith('.localhost') ||
    isIP(name.replace(/^\[(.*)\]$/, '$1')) !== 0 ||
    (name !== '' && ALLOWED_HOSTS.includes(name))
  );
}
