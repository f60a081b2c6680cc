// Two browsers on each page, the demo's and the Next.js one: checks what each of them may see.
//
//   npm ci
//   node users.mjs --demo http://127.0.0.1:3000 --next http://127.0.0.1:3001 --gates DIR
//
// The Next.js app must pipe to the demo given, which answers from its script (no OPENAI_API_KEY).

import { createServer } from 'node:http';
import { launch, readArguments, until, worldOf } from './chromium.mjs';

const args = readArguments();

/** A page of another site, with a link. */
const other = createServer((request, answer) => {
  const to = new URL(request.url, 'http://any').searchParams.get('to');
  answer.setHeader('content-type', 'text/html').end(`<a href="${to}">Look</a>`);
});
await new Promise(listening => other.listen(0, '127.0.0.1', listening));

const browser = await launch('--host-resolver-rules=MAP *.test 127.0.0.1');

let ran = 0;
let failed = 0;
function check(what, came, expected) {
  ran += 1;
  if (came === expected) return;
  failed += 1;
  console.log(`FAILED ${what}: ${came}, not ${expected}`);
}

/** How many approvals wait for this browser's user, or for a client without cookies. */
async function waiting(context) {
  const cookies = (await context?.cookies(args.demo)) ?? [];
  const cookie = cookies.map(({ name, value }) => `${name}=${value}`).join('; ');
  const answer = await fetch(new URL('/api/approvals', args.demo), { headers: { cookie } });
  return (await answer.json()).approvals.length;
}

async function asks(page) {
  const [input, send] = [page.getByTestId('input'), page.getByTestId('send')];
  // What is filled in before React has taken the page over is not read.
  await until('the page reads what is written', async () => {
    await input.fill('');
    await input.fill('delete old.log');
    return send.isEnabled();
  });
  await send.click();
  await page.getByTestId('approve').waitFor();
}

const own = async context => JSON.stringify(await context.cookies(args.demo));

for (const [site, url] of Object.entries({ demo: args.demo, next: args.next })) {
  const [first, second, linked] = [
    await browser.newContext(),
    await browser.newContext(),
    await browser.newContext(),
  ];
  const page = await first.newPage();
  await page.goto(url);
  await (await second.newPage()).goto(url);
  // The Next.js app gets it with the first request of its page.
  await until('the browser has a cookie', async () => (await first.cookies(args.demo)).length > 0);
  const [cookie] = await first.cookies(args.demo);
  check(`${site}: the cookie is HttpOnly`, cookie?.httpOnly, true);
  check(`${site}: the cookie is SameSite=Strict`, cookie?.sameSite, 'Strict');

  const others = await waiting();
  await asks(page);
  check(`${site}: the user sees the approval`, await waiting(first), 1);
  check(`${site}: another browser does not`, await waiting(second), 0);
  check(`${site}: nor does a client without a cookie`, await waiting(), others);

  // A link on another site: a new browser becomes a user, and a known one stays who it is.
  const to = new URL('/?from=a-link', url).href;
  const link = `http://other.test:${other.address().port}/?to=${encodeURIComponent(to)}`;
  const before = await own(first);
  for (const context of [first, linked]) {
    const opened = await context.newPage();
    await opened.goto(link);
    await opened.getByText('Look').click();
    await opened.waitForURL(address => address.origin === new URL(url).origin && address.search === '');
    await opened.getByTestId('input').waitFor();
  }
  check(`${site}: the link replaces no cookie`, await own(first), before);
  check(`${site}: the user still sees the approval`, await waiting(first), 1);
  await asks(linked.pages().at(-1));
  check(`${site}: the one who followed the link is a user, too`, await waiting(linked), 1);
  check(`${site}: and no client without a cookie`, await waiting(), others);

  await page.getByTestId('approve').click();
  const settled = page.locator('[data-testid="tool-delete_file"][data-state="output-available"]');
  await settled.waitFor();
  check(`${site}: the approval is used`, await waiting(first), 0);
  const hasFile = async context => (await worldOf(context, args.demo)).files.includes('old.log');
  check(`${site}: the file is gone from the user's world`, await hasFile(first), false);
  check(`${site}: and from no other one`, await hasFile(second), true);
  if (site === 'demo') {
    await page.getByTestId('world-reset').click();
    await page.getByTestId('file-old.log').waitFor();
    check('the user resets the world', await hasFile(first), true);
  }
  for (const context of [first, second, linked]) await context.close();
}
await browser.close();
other.close();
console.log(`users: ${ran} checks, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
