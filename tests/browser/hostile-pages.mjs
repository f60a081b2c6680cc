// Checks in a real browser what a hostile page can reach in a server on this machine:
//
//   npm ci
//   node hostile-pages.mjs --demo http://127.0.0.1:3000 --next http://127.0.0.1:3001 --gates DIR
//
// Chromium resolves the attacker's names to this machine, as the attacker's name server would. A page
// has a name that leads to the demo itself (DNS rebinding), or comes from another server on this
// machine (cross-site request forgery). The Next.js app in front of the demo is tested in the same way.
// So is a development proxy that replaces the host: the demo then sees the attacker's name only in the
// origin.

import { createServer, request } from 'node:http';
import { launch, readArguments } from './chromium.mjs';

const args = readArguments();

const chat = id =>
  JSON.stringify({
    id,
    messages: [{ id: '1', role: 'user', parts: [{ type: 'text', text: 'delete notes.txt' }] }],
  });
/** The requests of a page that a user opened. Under another name the same browser is another user. */
const posts = id => ({
  method: 'POST',
  body: chat(id),
  headers: { 'content-type': 'application/json' },
});
const CHAT = chat('stolen');

const attacker = createServer((_, answer) => {
  answer.setHeader('content-type', 'text/html').end('<title>Kittens</title>');
});
await new Promise(listening => attacker.listen(0, '127.0.0.1', listening));
const evil = `http://evil.test:${attacker.address().port}`;
const neighbour = `http://127.0.0.1:${attacker.address().port}`;

const browser = await launch('--host-resolver-rules=MAP *.test 127.0.0.1');

/** What a script of the page receives from a server: a status, or that the browser blocked it. */
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

/** The status of the request that `act` makes the browser send to a site. */
async function gets(site, page, act) {
  const [answer] = await Promise.all([
    page.waitForResponse(answer => answer.url().startsWith(site.origin)),
    act(),
  ]);
  return answer.status();
}

/** Puts a site into a frame of the page. */
function frames(page, site) {
  return page.evaluate(url => {
    const frame = document.createElement('iframe');
    frame.src = url;
    document.body.append(frame);
    return new Promise(loaded => frame.addEventListener('load', () => loaded()));
  }, site.href);
}

const json = posts('stolen');

/** Each case has the page on which it begins, the attempt, and the required result. */
function tries(site) {
  const at = host => `http://${host}:${site.port}`;
  return [
    ...['127.0.0.1', 'localhost', 'chat.localhost'].flatMap(host => [
      [`${host} shows the page`, at(host), (_, shown) => shown.status(), 200],
      [
        `${host} posts`,
        at(host),
        page => asks(page, '/api/chat', posts(`${host}:${site.port}`)),
        '200 true',
      ],
    ]),
    ...['rebound.test', 'localhost.rebound.test', '127.0.0.1.rebound.test'].flatMap(host => [
      [`${host} posts nothing`, at(host), page => asks(page, '/api/chat', json), '403 false'],
      [
        `${host} reconnects to nothing`,
        at(host),
        page => asks(page, '/api/chat/stolen/stream'),
        '403 false',
      ],
      [`${host} reads no history`, at(host), page => asks(page, '/api/chat/stolen'), '403 false'],
      [
        `${host} stops nothing`,
        at(host),
        page => asks(page, '/api/chat/stolen/stream', { method: 'DELETE' }),
        '403 false',
      ],
    ]),
    [
      'another site posts no JSON',
      evil,
      page => asks(page, `${site.origin}/api/chat`, json),
      'withheld',
    ],
    [
      'another site posts no text',
      evil,
      page => {
        const text = { method: 'POST', body: CHAT, mode: 'no-cors' };
        return gets(site, page, () => asks(page, `${site.origin}/api/chat`, text));
      },
      403,
    ],
    [
      'another site may not even make it look at a response',
      evil,
      page => {
        const url = `${site.origin}/api/chat/stolen/stream`;
        return gets(site, page, () => asks(page, url, { mode: 'no-cors' }));
      },
      403,
    ],
    [
      'a form of another site posts nothing',
      evil,
      page =>
        gets(site, page, () =>
          page.evaluate(url => {
            const form = document.createElement('form');
            Object.assign(form, { method: 'POST', action: url, enctype: 'text/plain' });
            document.body.append(form);
            form.submit();
          }, `${site.origin}/api/chat`),
        ),
      403,
    ],
    // Only the policy of the page protects it from a site that the browser calls the same.
    ...[evil, neighbour].map(url => [
      `${new URL(url).hostname} holds the page in no frame`,
      url,
      async page => {
        await frames(page, site);
        return page.frames()[1].getByTestId('input').count();
      },
      0,
    ]),
    [
      'a link on another site leads to the page',
      evil,
      page =>
        gets(site, page, () =>
          page.evaluate(url => {
            const link = document.createElement('a');
            link.href = url;
            document.body.append(link);
            link.click();
          }, site.href),
        ),
      200,
    ],
    [
      'the page comes with a policy without exceptions for scripts',
      site.href,
      (_, shown) => {
        const { 'content-security-policy': policy, 'x-content-type-options': type } =
          shown.headers();
        const scripts = /script-src ([^;]*)/.exec(policy)?.[1];
        return `${/frame-ancestors 'none'/.test(policy)} ${/unsafe|\*/.test(scripts)} ${type}`;
      },
      'true false nosniff',
    ],
    [
      'a script in the markup of the page does not run',
      site.href,
      async page => {
        const refused = page.waitForEvent('console', said => /Security Policy/.test(said.text()));
        await page.evaluate(() => {
          const markup = '<img src="data:," onerror="document.title = \'ran\'">';
          document.body.insertAdjacentHTML('beforeend', markup);
        });
        await refused;
        return (await page.title()) !== 'ran';
      },
      true,
    ],
  ];
}

const [demo, next] = [new URL(args.demo), new URL(args.next)];

/** Forwards to the demo and replaces the host, as Vite's short form of a proxy does. */
const proxy = createServer((asked, answer) => {
  const headers = { ...asked.headers, host: demo.host };
  const { hostname, port } = demo;
  const options = { hostname, port, path: asked.url, method: asked.method, headers };
  const forwarded = request(options, from => {
    answer.writeHead(from.statusCode, from.headers);
    from.pipe(answer);
  });
  asked.pipe(forwarded);
  // The page of the demo reads events until it is closed.
  answer.on('close', () => forwarded.destroy());
  forwarded.on('error', () => answer.destroy());
});
await new Promise(listening => proxy.listen(0, '127.0.0.1', listening));
const proxied = host => `http://${host}:${proxy.address().port}`;
const forged = {
  ...json,
  headers: { ...json.headers, origin: proxied('localhost'), 'sec-fetch-site': 'same-origin' },
};

const TRIES = [
  ...tries(demo).map(([what, ...rest]) => [`demo: ${what}`, ...rest]),
  ...tries(next).map(([what, ...rest]) => [`next: ${what}`, ...rest]),
  ...['127.0.0.1', 'localhost', 'chat.localhost'].map(host => [
    `proxy: ${host} posts`,
    proxied(host),
    page => asks(page, '/api/chat', posts(proxied(host))),
    '200 true',
  ]),
  ...['rebound.test', 'localhost.rebound.test', '127.0.0.1.rebound.test'].flatMap(host => [
    [
      `proxy: ${host} posts nothing`,
      proxied(host),
      page => asks(page, '/api/chat', json),
      '403 false',
    ],
    [
      `proxy: ${host} forges no header`,
      proxied(host),
      page => asks(page, '/api/chat', forged),
      '403 false',
    ],
  ]),
  ...[evil, neighbour].map(url => [
    `proxy: ${new URL(url).hostname} posts nothing`,
    url,
    page => asks(page, `${proxied('localhost')}/api/chat`, json),
    'withheld',
  ]),
  // Only the demo shows its world. It shows its page under no other name.
  [`localhost reads the world`, demo.href, page => asks(page, '/api/world'), '200 true'],
  ...['rebound.test', 'localhost.rebound.test', '127.0.0.1.rebound.test'].flatMap(host => {
    const url = `http://${host}:${demo.port}`;
    return [
      [`${host} shows nothing`, url, (_, shown) => shown.status(), 403],
      [`${host} reads no world`, url, page => asks(page, '/api/world'), '403 false'],
    ];
  }),
  ['another site reads no world', evil, page => asks(page, `${demo.origin}/api/world`), 'withheld'],
  [
    'another site may not even make the demo look at its world',
    evil,
    page => gets(demo, page, () => asks(page, `${demo.origin}/api/world`, { mode: 'no-cors' })),
    403,
  ],
];

let failed = 0;
for (const [what, url, attempt, expected] of TRIES) {
  const page = await browser.newPage();
  let came;
  try {
    const shown = await page.goto(url);
    came = await attempt(page, shown);
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
proxy.close();
console.log(`hostile pages: ${TRIES.length} tries, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
