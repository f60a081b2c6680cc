// What a hostile page reaches in a server on this machine, in a real browser:
//
//   npm ci
//   node hostile-pages.mjs --demo http://127.0.0.1:3000
//
// Chromium is told that the attacker's names lead to this machine, as his name server would say.
// The page is that of a name which leads to the demo itself (DNS rebinding), or of a server beside
// it (cross-site request forgery).

import { existsSync } from 'node:fs';
import { createServer } from 'node:http';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';

const PATIENCE = 15_000;

const { values: args } = parseArgs({ options: { demo: { type: 'string' } } });
if (!args.demo) {
  console.error('usage: node hostile-pages.mjs --demo URL');
  process.exit(2);
}
const demo = new URL(args.demo);
const at = host => `http://${host}:${demo.port}`;

const CHAT = JSON.stringify({
  id: 'stolen',
  messages: [{ id: '1', role: 'user', parts: [{ type: 'text', text: 'delete notes.txt' }] }],
});

const attacker = createServer((_, answer) => {
  answer.setHeader('content-type', 'text/html').end('<title>Kittens</title>');
});
await new Promise(listening => attacker.listen(0, '127.0.0.1', listening));
const evil = `http://evil.test:${attacker.address().port}`;

const browser = await chromium.launch({
  executablePath: ['/usr/bin/chromium', '/usr/bin/chromium-browser'].find(existsSync),
  args: [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
    '--host-resolver-rules=MAP *.test 127.0.0.1',
  ],
});

/** What a script of the page gets of the demo: a status, or that the browser withheld it. */
function asks(page, url, init) {
  return page.evaluate(
    ([url, init]) =>
      fetch(url, init).then(
        async answer => `${answer.status} ${(await answer.text()).includes('notes.txt')}`,
        () => 'withheld',
      ),
    [url, init],
  );
}

/** The status that the demo gave to what `act` makes the browser send. */
async function gets(page, act) {
  const [answer] = await Promise.all([
    page.waitForResponse(answer => answer.url().startsWith(demo.origin)),
    act(),
  ]);
  return answer.status();
}

const json = { method: 'POST', body: CHAT, headers: { 'content-type': 'application/json' } };

/** Each with the page it begins on, what is tried there, and what must come of it. */
const TRIES = [
  ...['127.0.0.1', 'localhost', 'chat.localhost'].flatMap(host => [
    [`${host} shows the page`, at(host), (_, shown) => shown, 200],
    [`${host} reads the world`, at(host), page => asks(page, '/api/world'), '200 true'],
    [`${host} posts`, at(host), page => asks(page, '/api/chat', json), '200 true'],
  ]),
  ...['rebound.test', 'localhost.rebound.test', '127.0.0.1.rebound.test'].flatMap(host => [
    [`${host} shows nothing`, at(host), (_, shown) => shown, 403],
    [`${host} reads no world`, at(host), page => asks(page, '/api/world'), '403 false'],
    [`${host} posts nothing`, at(host), page => asks(page, '/api/chat', json), '403 false'],
    [
      `${host} stops nothing`,
      at(host),
      page => asks(page, '/api/chat/stolen/stream', { method: 'DELETE' }),
      '403 false',
    ],
  ]),
  [
    'another site reads no world',
    evil,
    page => asks(page, `${demo.origin}/api/world`),
    'withheld',
  ],
  [
    'another site may not even make the demo look at its world',
    evil,
    page => gets(page, () => asks(page, `${demo.origin}/api/world`, { mode: 'no-cors' })),
    403,
  ],
  [
    'another site posts no JSON',
    evil,
    page => asks(page, `${demo.origin}/api/chat`, json),
    'withheld',
  ],
  [
    'another site posts no text',
    evil,
    page => {
      const text = { method: 'POST', body: CHAT, mode: 'no-cors' };
      return gets(page, () => asks(page, `${demo.origin}/api/chat`, text));
    },
    403,
  ],
  [
    'a form of another site posts nothing',
    evil,
    page =>
      gets(page, () =>
        page.evaluate(url => {
          const form = document.createElement('form');
          Object.assign(form, { method: 'POST', action: url, enctype: 'text/plain' });
          document.body.append(form);
          form.submit();
        }, `${demo.origin}/api/chat`),
      ),
    403,
  ],
  [
    'another site holds the page in no frame',
    evil,
    page =>
      gets(page, () =>
        page.evaluate(url => {
          const frame = document.createElement('iframe');
          frame.src = url;
          document.body.append(frame);
        }, demo.href),
      ),
    403,
  ],
  [
    'a link on another site leads to the page',
    evil,
    page =>
      gets(page, () =>
        page.evaluate(url => {
          const link = document.createElement('a');
          link.href = url;
          document.body.append(link);
          link.click();
        }, demo.href),
      ),
    200,
  ],
];

let failed = 0;
for (const [what, url, attempt, expected] of TRIES) {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  let came;
  try {
    const shown = await page.goto(url);
    came = await attempt(page, shown.status());
  } catch (error) {
    came = error.message.split('\n', 1)[0];
  }
  if (came !== expected) {
    failed += 1;
    console.log(`FAILED ${what}: ${came}, not ${expected}`);
  }
  await page.close();
}
await browser.close();
attacker.close();
console.log(`hostile pages: ${TRIES.length} tries, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
