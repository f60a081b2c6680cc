#!/usr/bin/env bash
# Varnish 7.1.1 (Debian 12: 7.1.1-2+deb12u1, needs gcc) with ai 7.0.173, 2026-12-01, Node 20.
#
# Behaviour: a page asks for an answer in progress by GET, and the server says 204 because there is none. Varnish stores this
# response, which has no header about caching and no body, for two minutes. An answer that begins in this time is running
# when the page asks again, and Varnish says 204 once more without asking the server: `reconnectToStream` of `ai` returns
# null, which is "nothing to resume". With `cache-control: no-store` at the 204 the page gets the stream.
#
# What most would guess: an empty response is not stored, or only one that says how long it is valid.
#
# Whom it matters to: servers with resumable streams behind Varnish, whose pages send no cookies (with cookies nothing is
# stored). A page that is reloaded during an answer shows it unfinished, without an error. Send `no-store` with the 204.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y >/dev/null
npm install --silent --no-audit --no-fund ai@7.0.173
apt-get download -qq varnish=7.1.1-2+deb12u1 libvarnishapi3=7.1.1-2+deb12u1 2>/dev/null
for package in *.deb; do dpkg-deb -x "$package" .; done
cat >main.mjs <<'JS'
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { DefaultChatTransport } from 'ai';

const listen = server => new Promise(done => server.listen(0, '127.0.0.1', () => done(server.address().port)));
let [runs, asked] = [false, 0];
const answers = createServer((request, response) => {
  asked++;
  if (request.url.includes('no-store')) response.setHeader('cache-control', 'no-store');
  if (!runs) return response.writeHead(204).end();
  response.writeHead(200, { 'content-type': 'text/event-stream' }).end('data: {"type":"start"}\n\n');
});
const upstream = await listen(answers);
const free = createServer();
const port = await listen(free);
await new Promise(done => free.close(done));
const [here, library] = [process.cwd(), `${process.cwd()}/usr/lib/${process.argv[2]}`];
writeFileSync('chat.vcl', `vcl 4.1;\nbackend chat { .host = "127.0.0.1"; .port = "${upstream}"; }\n`);
const env = { ...process.env, LD_LIBRARY_PATH: `${library}:${library}/varnish` };
const paths = ['-p', `vmod_path=${library}/varnish/vmods`, '-p', `vcl_path=${here}/usr/share/varnish/vcl`];
const options = ['-F', '-n', `${here}/work`, '-a', `127.0.0.1:${port}`, '-f', `${here}/chat.vcl`, '-j', 'none', ...paths];
const varnish = spawn('usr/sbin/varnishd', options, { env, stdio: 'ignore' });
const transport = new DefaultChatTransport({ api: `http://127.0.0.1:${port}` });
const resume = chatId => transport.reconnectToStream({ chatId });
while ((await resume('none').catch(() => 'starts')) === 'starts') await new Promise(done => setTimeout(done, 200));
for (const chatId of ['plain', 'no-store']) {
  const seen = [];
  for (runs of [false, true]) {
    asked = 0;
    const stream = await resume(chatId);
    seen.push(`answer runs ${runs}: ${stream ? 'stream' : 'null'}, server asked ${asked} times`);
  }
  console.log(`${chatId}: ${seen.join('; ')}`);
}
varnish.kill();
process.exit(0);
JS
printed=$(timeout 120 node main.mjs "$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -print-multiarch)")
printf '%s\n' "$printed"
[ "$printed" = 'plain: answer runs false: null, server asked 1 times; answer runs true: null, server asked 0 times
no-store: answer runs false: null, server asked 1 times; answer runs true: stream, server asked 1 times' ]
