#!/usr/bin/env bash
# HAProxy 2.6.12 (Debian 12: 2.6.12-1+deb12u4) on Linux, 2026-12-01.
#
# Behaviour: a server streams small server-sent events through HAProxy, in chunks of HTTP/1.1, and flushes each. Each arrives
# about 0.2 seconds late, and what is sent in this time arrives together with it: HAProxy tells the kernel that more will
# follow. The configuration is one of a proxy that has nothing to do with buffering. With `option http-no-delay` each event
# arrives at once. The manual has this option for communication between machines, and advises against it elsewhere.
#
# What most would guess: a proxy passes on what it has read, unless it compresses or buffers.
#
# Whom it matters to: answers that shall appear word by word, and everything that waits for an event before it does the next
# step, such as a tool of the page. Set the option for the routes that stream.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq haproxy=2.6.12-1+deb12u4 2>/dev/null
dpkg-deb -x haproxy_*.deb .
cat >main.mjs <<'JS'
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';

const listen = server => new Promise(done => server.listen(0, '127.0.0.1', () => done(server.address().port)));
const events = 20;
let arrived;
const answers = createServer(async (request, response) => {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  for (let number = 0; number < events; number++) {
    const seen = new Promise(done => { arrived = done; });
    response.write(`data: ${number}\n\n`);
    await seen;
  }
  response.end();
});
answers.on('connection', socket => socket.setNoDelay(true));
const upstream = await listen(answers);
const median = {};
for (const option of ['', 'option http-no-delay']) {
  const free = createServer();
  const port = await listen(free);
  await new Promise(done => free.close(done));
  writeFileSync('haproxy.cfg', `defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  ${option}
frontend page
  bind 127.0.0.1:${port}
  default_backend chat
backend chat
  server one 127.0.0.1:${upstream}
`);
  const haproxy = spawn('usr/sbin/haproxy', ['-db', '-f', 'haproxy.cfg'], { stdio: 'ignore' });
  const read = async () => {
    const times = [];
    let before = performance.now();
    for await (const piece of (await fetch(`http://127.0.0.1:${port}/`)).body) {
      times.push(performance.now() - before);
      before = performance.now();
      arrived();
    }
    return times.sort((left, right) => left - right)[events / 2];
  };
  while (!(median[option] = await read().catch(() => null))) await new Promise(done => setTimeout(done, 100));
  console.log(`${option || 'no option'}: ${median[option] > 100 ? 'more' : 'less'} than 100 ms for an event`);
  haproxy.kill();
}
process.exit(0);
JS
printed=$(timeout 120 node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'no option: more than 100 ms for an event
option http-no-delay: less than 100 ms for an event' ]
