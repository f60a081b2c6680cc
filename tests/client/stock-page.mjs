// Writes pages of one file each, with React and `useChat`: `stock-page.jsx` as `v6.html` and `v7.html`, and of
// `docs/front-end.md` the page that it begins with as `documented-v6.html` and `documented-v7.html`, and the one for an adapter as
// `adapter-v6.html` and `adapter-v7.html`.
//   node stock-page.mjs FOLDER

import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { NEWEST, REFERENCE } from './clients.mjs';

const [folder] = process.argv.slice(2);
if (!folder) throw new Error('where to? node stock-page.mjs FOLDER');

const here = fileURLToPath(new URL('.', import.meta.url));

const STYLE = `
  body { font: 1rem/1.4 system-ui, sans-serif; margin: 0.75rem; }
  section { border: 1px solid #999; border-radius: 0.5rem; padding: 0 0.6rem; margin: 0.6rem 0; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  input { max-width: 9rem; }
  .user { text-align: right; }`;

const CLIENTS = {
  v6: { ai: `ai-${REFERENCE}` },
  v7: { ai: `ai-${NEWEST}`, '@ai-sdk/react': 'ai-sdk-react-7' },
};

const guide = readFileSync(join(here, '../../docs/front-end.md'), 'utf8');
const blocks = Array.from(guide.matchAll(/```tsx\n(.*?)\n```/gs), ([, block]) => block);
const [documented, adapter] = blocks.filter(block => block.includes('export default function Page()'));
const lines = documented.split('\n').length;
if (lines > 25) throw new Error(`the page of docs/front-end.md has ${lines} lines`);
const show = `import { createRoot } from 'react-dom/client';
createRoot(document.getElementById('root')).render(<Page />);`;
const shown = page => ({ stdin: { contents: `${page}\n${show}`, loader: 'tsx', resolveDir: here } });
const PAGES = {
  '': { entryPoints: [join(here, 'stock-page.jsx')] },
  'documented-': shown(documented),
  'adapter-': shown(adapter),
};

const pages = Object.entries(PAGES).flatMap(([kind, source]) =>
  Object.entries(CLIENTS).map(([client, alias]) => [kind + client, source, alias]),
);
await Promise.all(
  pages.map(async ([name, source, alias]) => {
    const { outputFiles } = await build({
      ...source,
      absWorkingDir: here,
      alias,
      bundle: true,
      minify: true,
      write: false,
      format: 'esm',
      jsx: 'automatic',
      define: { 'process.env.NODE_ENV': '"development"' },
    });
    const head = `<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${name}</title>`;
    const page = `<!doctype html><html lang="en">${head}<style>${STYLE}</style><div id="root"></div>
      <script type="module">${outputFiles[0].text}</script></html>`;
    writeFileSync(join(folder, `${name}.html`), page);
  }),
);
