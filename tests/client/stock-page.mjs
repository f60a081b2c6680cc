// Writes `stock-page.jsx` with React and `useChat` as pages of one file each: `v6.html` and `v7.html`.
//   node stock-page.mjs FOLDER

import { writeFileSync } from 'node:fs';
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

const PAGES = {
  v6: { ai: `ai-${REFERENCE}` },
  v7: { ai: `ai-${NEWEST}`, '@ai-sdk/react': 'ai-sdk-react-7' },
};
await Promise.all(
  Object.entries(PAGES).map(async ([name, alias]) => {
    const { outputFiles } = await build({
      entryPoints: [join(here, 'stock-page.jsx')],
      absWorkingDir: here,
      alias,
      bundle: true,
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
