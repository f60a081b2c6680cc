// What the scripts of this folder share: a real browser, and the pages that they are given.

import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';
import { PATIENCE, until } from '../support/until.mjs';

export { PATIENCE, until };

/** The settings of a browser that is not a phone, and of one that is. */
export const SCREENS = {
  desktop: { viewport: { width: 1280, height: 800 }, colorScheme: 'light' },
  phone: {
    viewport: { width: 390, height: 844 },
    colorScheme: 'dark',
    isMobile: true,
    hasTouch: true,
  },
};

/** The arguments of a script: both pages, the folder of the demo's gates, a folder if it is to take pictures, and a part of the names of the cases that run. */
export function readArguments() {
  const options = ['demo', 'next', 'gates', 'screenshots', 'only'].map(name => [name, { type: 'string' }]);
  const { values } = parseArgs({ options: Object.fromEntries(options) });
  if (values.demo && values.next && values.gates) return values;
  console.error(`usage: node ${process.argv[1]} --demo URL --next URL --gates DIR [--screenshots DIR] [--only TEXT]`);
  process.exit(2);
}

/** The headless shell, the default of Playwright, needs a third less CPU. */
const PROGRAMS = ['/usr/bin/chromium-headless-shell', '/usr/bin/chromium'];

export async function launch(...more) {
  const browser = await chromium.launch({
    timeout: PATIENCE,
    executablePath: PROGRAMS.find(existsSync),
    args: [
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
      ...more,
    ],
  });
  const newContext = browser.newContext.bind(browser);
  browser.newContext = async options => {
    const context = await newContext(options);
    context.setDefaultTimeout(PATIENCE);
    return context;
  };
  return browser;
}

/** The rules of axe-core for a page that is only a part, without headings. */
export const WCAG = ['wcag2a', 'wcag2aa'];

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** What keeps some people from using the page, as axe-core finds it. Without `tags` by all of its rules. */
export async function barriersOf(page, tags) {
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(AXE);
  const { violations } = await page.evaluate(tags => axe.run(tags ? { runOnly: tags } : {}), tags);
  return violations.map(({ id, help, nodes }) => `axe: ${id}: ${help}: ${nodes.map(node => node.html).join(' ')}`);
}

/** The world of a browser's user, on which the tools of the demo act. The Next.js app passes its cookie on. */
export async function worldOf(context, demo) {
  return (await context.request.get(new URL('/api/world', demo).href)).json();
}
