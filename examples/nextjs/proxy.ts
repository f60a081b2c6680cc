import { type NextRequest, NextResponse } from 'next/server';

// In development Next.js evaluates code and inlines styles.
const dev = process.env.NODE_ENV === 'development';

/** Sends the page with a policy under which only the scripts of this app run. */
export function proxy(request: NextRequest) {
  const nonce = crypto.randomUUID();
  const policy = [
    "default-src 'none'",
    `script-src 'nonce-${nonce}' 'strict-dynamic'${dev ? " 'unsafe-eval'" : ''}`,
    `style-src 'self'${dev ? " 'unsafe-inline'" : ''}`,
    "img-src 'self' data:",
    "font-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    // No other page may show this one in a frame, where a user could be led to click on Approve.
    "frame-ancestors 'none'",
  ].join('; ');
  // Next.js takes the nonce for its own scripts from the policy of the request.
  const headers = new Headers(request.headers);
  headers.set('content-security-policy', policy);
  const response = NextResponse.next({ request: { headers } });
  response.headers.set('content-security-policy', policy);
  return response;
}

export const config = { matcher: '/((?!api/|_next/).*)' };
