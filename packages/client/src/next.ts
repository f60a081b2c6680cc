import { isIP } from 'node:net';

/** Where the chat server is, and how browsers reach this app. */
export type ChatRouteOptions = {
  /** The chat server. Default: the variable `CHAT_SERVER`, or `http://127.0.0.1:3000`. */
  server?: string;
  /**
   * The names under which browsers reach this app, besides `localhost` and addresses. Default: the variable
   * `ALLOWED_HOSTS`, separated by commas.
   */
  allowedHosts?: string[];
  /**
   * Headers for the chat server, in place of those of the browser with the same name: for example `authorization`, with
   * a token for the user of this app's own session.
   */
  headers?: (request: Request) => HeadersInit | Promise<HeadersInit>;
};

type Handler = (request: Request) => Promise<Response>;

/**
 * Route Handlers that pass requests on to the chat server, for `app/api/chat/[[...path]]/route.ts` of Next.js:
 *
 * ```ts
 * import { chatRoute } from 'ui-message-stream-client/next';
 *
 * export const { GET, POST, PATCH, DELETE } = chatRoute();
 * ```
 *
 * Each piece of a response is passed on at once. Cookies pass in both directions. Requests of other sites' pages are
 * refused with status 403. The chat server has the routes at the same path.
 *
 * If the chat server gives its users a cookie with its page `/`, as the demo does, a browser without a cookie and
 * without a token gets it with its first request.
 */
export function chatRoute(options: ChatRouteOptions = {}): Record<'GET' | 'POST' | 'PATCH' | 'DELETE', Handler> {
  const { CHAT_SERVER, ALLOWED_HOSTS } = process.env;
  const server = new URL(options.server ?? CHAT_SERVER ?? 'http://127.0.0.1:3000');
  const allowedHosts = options.allowedHosts ?? (ALLOWED_HOSTS ?? '').split(',');
  const anonymousUser = anonymousUsers(server);
  const handle: Handler = async request => {
    const refused = refusal(request.headers, allowedHosts);
    if (refused) return new Response(refused, { status: 403 });
    const headers = pick(request.headers, REQUEST_HEADERS);
    new Headers(await options.headers?.(request)).forEach((value, name) => headers.set(name, value));
    try {
      return await pipe(request, headers, server, anonymousUser);
    } catch (error) {
      if (!request.signal.aborted) console.error('the chat server cannot be reached:', error);
      // useChat shows the text of a response that is not 2xx as its error.
      return new Response('The chat server cannot be reached.', { status: 502 });
    }
  };
  return { GET: handle, POST: handle, PATCH: handle, DELETE: handle };
}

// Named one by one: what else came along (content-encoding, content-length) described bytes that
// `fetch` has already decoded.
const RESPONSE_HEADERS = [
  'content-type',
  'cache-control',
  'x-vercel-ai-ui-message-stream',
  'x-accel-buffering',
  'retry-after',
];

// Among them what the chat server knows its users by, and `accept`, with which a client asks for
// JSON instead of a stream. `origin` would name this app, which the chat server does not know:
// `refusal` checks it here.
const REQUEST_HEADERS = ['accept', 'content-type', 'authorization', 'cookie', 'last-event-id', 'ai-sdk-version'];

async function pipe(
  request: Request,
  headers: Headers,
  server: URL,
  anonymousUser: AnonymousUsers,
): Promise<Response> {
  const { pathname, search } = new URL(request.url);
  const isOpening = request.method === 'GET' && (search === '?events' || pathname.endsWith('/stream'));
  const cookies = await anonymousUser(headers, isOpening);
  const url = new URL(server); // only its path is that of the request
  url.pathname = pathname;
  url.search = search;
  const upstream = await fetch(url, {
    method: request.method,
    headers,
    body: request.body,
    duplex: 'half', // what `fetch` asks for when a body is a stream; TypeScript's DOM types lack it
    signal: request.signal, // if the browser stops reading, this server stops reading too
    cache: 'no-store',
    redirect: 'manual', // no other server gets the cookies
  } as RequestInit);
  const passedOn = pick(upstream.headers, RESPONSE_HEADERS);
  // Each on its own: a comma may stand within a cookie.
  for (const cookie of [...cookies, ...upstream.headers.getSetCookie()]) passedOn.append('set-cookie', cookie);
  return new Response(upstream.body, { status: upstream.status, headers: passedOn });
}

/**
 * Adds the cookies of a new user to the headers of a browser that has none, and returns them. If a page opens, the
 * server is asked whether it still accepts those that the browser has.
 */
type AnonymousUsers = (headers: Headers, isOpening: boolean) => Promise<string[]>;

/**
 * Gets the cookies from the page `/` of the chat server. Which cookies these are is asked once.
 *
 * No request to these routes comes from another site, for which a browser would withhold cookies that it has.
 */
function anonymousUsers(server: URL): AnonymousUsers {
  const ask = (headers: HeadersInit) => {
    return fetch(new URL('/', server), { method: 'HEAD', headers, cache: 'no-store', redirect: 'manual' });
  };
  const nameOf = (cookie: string) => cookie.split('=')[0] ?? '';
  let names: string[] | undefined;
  return async (headers, isOpening) => {
    if (headers.has('authorization')) return [];
    if (!names) {
      const page = await ask({});
      if (page.status < 500) names = page.headers.getSetCookie().map(nameOf);
    }
    const sent = headers.get('cookie');
    const own = sent?.split(/; */) ?? [];
    const isKnown = names?.every(name => own.some(cookie => nameOf(cookie) === name)) ?? false;
    if (names?.length === 0 || (isKnown && !isOpening)) return [];
    const cookies = (await ask(sent === null ? {} : { cookie: sent })).headers.getSetCookie();
    if (cookies.length === 0) return [];
    const others = own.filter(cookie => !cookies.some(other => nameOf(other) === nameOf(cookie)));
    headers.set('cookie', [...others, ...cookies.map(cookie => cookie.split(';')[0])].join('; '));
    return cookies;
  };
}

function pick(headers: Headers, names: string[]): Headers {
  const picked = new Headers();
  for (const name of names) {
    const value = headers.get(name);
    if (value !== null) picked.set(name, value);
  }
  return picked;
}

/**
 * Returns why a request must not be passed on, or `undefined` if it may.
 *
 * The chat server sees neither the name in the address bar nor the origin of the page, so it cannot
 * check them.
 */
function refusal(headers: Headers, allowedHosts: string[]): string | undefined {
  const host = headers.get('host') ?? '';
  // A hostile page can point a name of its own at this machine (DNS rebinding). Only the `Host`
  // header then shows the difference.
  if (!isOwn(host, allowedHosts)) return 'This app is not reached under this name. See ALLOWED_HOSTS.';
  const origin = headers.get('origin');
  const isForeign =
    origin === null
      ? headers.get('sec-fetch-site') === 'cross-site'
      : origin !== `http://${host}` && origin !== `https://${host}`;
  return isForeign ? 'Pages of another site may not use this chat.' : undefined;
}

/** The name in lower case, without a port and a trailing dot. */
function hostName(host: string): string {
  return host.trim().toLowerCase().replace(/:\d*$/, '').replace(/\.$/, '');
}

function isOwn(host: string, allowedHosts: string[]): boolean {
  const name = hostName(host);
  const isLocal = name === 'localhost' || name.endsWith('.localhost');
  const isAddress = isIP(name.replace(/^\[(.*)\]$/, '$1')) !== 0;
  return isLocal || isAddress || (name !== '' && allowedHosts.map(hostName).includes(name));
}
