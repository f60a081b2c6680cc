import type { NextRequest, NextResponse } from 'next/server';
import { CHAT_SERVER } from './api/chat/pipe';
import { isChatId } from './chat-id';

/** In the query of the page when the browser opens it for the second time. */
const OPENED_AGAIN = 'opened-again';

/**
 * Gives the browser that opens the page the cookie by which the chat server knows it. It comes with
 * the page of that server. Every request of the chat then carries it (see `pipe`).
 */
export async function passOnUserCookie(request: NextRequest, response: NextResponse) {
  if (request.nextUrl.pathname !== '/') return;
  // The page comes with a cookie for one browser: no cache may give it to another.
  response.headers.set('cache-control', 'private, no-store');
  if (request.headers.get('sec-fetch-site') === 'cross-site') {
    // The browser withholds its cookies when a page of another site opens this one, and that page
    // must not replace them. So the browser opens the page once more, from here.
    const { searchParams } = request.nextUrl;
    if (searchParams.has(OPENED_AGAIN)) return;
    const chat = searchParams.get('chat');
    const again = chat !== null && isChatId(chat) ? `chat=${chat}&${OPENED_AGAIN}` : OPENED_AGAIN;
    response.headers.set('refresh', `0; url=/?${again}`);
    return;
  }
  const cookie = request.headers.get('cookie');
  const headers = cookie === null ? undefined : { cookie };
  try {
    // Only the head of the page, and never that of another browser.
    const init: RequestInit = { method: 'HEAD', headers, cache: 'no-store' };
    const page = await fetch(new URL('/', CHAT_SERVER), init);
    for (const own of page.headers.getSetCookie()) response.headers.append('set-cookie', own);
  } catch {
    // The chat server cannot be reached: the page says so when the user writes.
  }
}
