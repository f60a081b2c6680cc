// Writes a page of one file for each framework, with the package as `npm pack` makes it, and checks the types of the
// pages that are written in TypeScript.
//   node build.mjs FOLDER
import { execFile } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import { compile } from 'svelte/compiler';

const [folder] = process.argv.slice(2);
if (!folder) throw new Error('where to? node build.mjs FOLDER');

const here = fileURLToPath(new URL('.', import.meta.url));
const run = async (program, ...args) => {
  const { stdout } = await promisify(execFile)(program, args, { cwd: here }).catch(error => {
    console.error(error.stdout, error.stderr);
    throw error;
  });
  return stdout;
};

// Not `npm install`: the package is not in the lock file of these pages, as it changes with each commit.
const [{ filename }] = JSON.parse(await run('npm', 'pack', '..', '--json'));
const installed = join(here, 'node_modules/ui-message-stream-client');
rmSync(installed, { recursive: true, force: true });
mkdirSync(installed, { recursive: true });
await run('tar', '-xzf', filename, '-C', installed, '--strip-components=1');
rmSync(join(here, filename));

const of = version => ({ ai: `ai-${version}`, '@ai-sdk/react': `ai-sdk-react-${version}` });
const V6 = of('6');
const paths = Object.fromEntries(Object.entries(V6).map(([name, path]) => [name, [`./node_modules/${path}`]]));
const project = { extends: './tsconfig.json', compilerOptions: { paths }, files: ['angular.ts', 'react.tsx'] };
writeFileSync(join(here, 'tsconfig.v6.json'), JSON.stringify(project));
const checked = Promise.all([run('npx', 'tsc'), run('npx', 'tsc', '-p', 'tsconfig.v6.json')]);
checked.catch(() => {}); // it is awaited after the pages are written

const svelte = {
  name: 'svelte',
  setup({ onLoad }) {
    onLoad({ filter: /\.svelte$/ }, ({ path }) => {
      return { contents: compile(readFileSync(path, 'utf8'), { filename: path, generate: 'client' }).js.code };
    });
    onLoad({ filter: /\.svelte\.js$/ }, async ({ path }) => {
      const { compileModule } = await import('svelte/compiler');
      return { contents: compileModule(readFileSync(path, 'utf8'), { filename: path, generate: 'client' }).js.code };
    });
  },
};
const mountSvelte = `import { mount } from 'svelte';
import Page from './page.svelte';
mount(Page, { target: document.getElementById('root') });`;

const PAGES = {
  'stored-react-v6': { entryPoints: ['react.tsx'], alias: V6 },
  'stored-react-v7': { entryPoints: ['react.tsx'] },
  // The oldest versions that the package accepts.
  'stored-react-v6-oldest': { entryPoints: ['react.tsx'], alias: of('6-oldest') },
  'stored-react-v7-oldest': { entryPoints: ['react.tsx'], alias: of('7-oldest') },
  'stored-angular': { entryPoints: ['angular.ts'] },
  'stored-vue': { entryPoints: ['vue.ts'], define: { __VUE_OPTIONS_API__: 'false', __VUE_PROD_DEVTOOLS__: 'false', __VUE_PROD_HYDRATION_MISMATCH_DETAILS__: 'false' } },
  'stored-svelte': { stdin: { contents: mountSvelte, resolveDir: here }, plugins: [svelte], conditions: ['svelte', 'browser'] },
};
const write = async ([name, { define, ...source }]) => {
  const { outputFiles } = await build({
    ...source,
    absWorkingDir: here,
    bundle: true,
    minify: true,
    write: false,
    format: 'esm',
    target: 'es2022',
    jsx: 'automatic',
    define: { 'process.env.NODE_ENV': '"development"', ...define },
  });
  const head = `<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${name}</title>`;
  const style = '<style>body { font: 1rem/1.4 system-ui } section { border: 1px solid #999; padding: 0 .5rem } pre { white-space: pre-wrap }</style>';
  const page = `<!doctype html><html lang="en">${head}${style}<div id="root"></div>
    <script type="module">${outputFiles[0].text.replaceAll('</script', '<\\/script')}</script></html>`;
  writeFileSync(join(folder, `${name}.html`), page);
};
await Promise.all(Object.entries(PAGES).map(write));
await checked;
rmSync(join(here, 'tsconfig.v6.json'));
