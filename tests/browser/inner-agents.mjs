// An agent inside the agent asks for two deletions, in both pages, the demo's and the Next.js one: the user
// approves one of them and denies the other one, also after a reload.
//
//   npm ci
//   node inner-agents.mjs --demo http://127.0.0.1:3000 --next http://127.0.0.1:3001 --gates DIR [--screenshots DIR]
//
// The Next.js app must pipe to the demo given, which answers from its script (no OPENAI_API_KEY).

import assert from 'node:assert/strict';
import { onBothPages } from './both-pages.mjs';
import { launch, readArguments, SCREENS, until, worldOf } from './chromium.mjs';
import { Tab } from './tab.mjs';

const args = readArguments();
const browser = await launch();

const files = async tab => (await worldOf(tab.page.context(), args.demo)).files;

async function tidyUp({ tab, reloads, shoot }) {
  const before = await files(tab);
  const [deleted, kept] = before;
  await tab.write('Please tidy up');
  const questions = tab.page.locator('[data-testid="tool-janitor__delete_file"]');
  const janitor = tab.page.getByTestId('tool-janitor');
  const isAsked = async () => {
    await until('both questions are shown', async () => {
      return (await tab.page.getByTestId('approve').count()) === 2 && tab.isIdle();
    });
    for (const [place, file] of [deleted, kept].entries()) {
      const question = await questions.nth(place).innerText();
      assert(question.includes(file), `${question} names ${file}`);
      assert.match(question, /asked by janitor/i);
    }
    assert.match(await janitor.innerText(), /waiting for you/i);
    assert.deepEqual(await files(tab), before);
  };
  await isAsked();
  await shoot('asked');
  if (reloads) {
    await tab.page.reload();
    await isAsked();
  }

  await questions.nth(0).getByTestId('approve').click();
  await deny(tab.page, questions.nth(1));
  const text = new RegExp(`The janitor says: ${deleted} is deleted\\. The file stays .*: still needed\\.$`);
  const isShown = async () => {
    await until('the answer is complete', async () => text.test(await tab.text()) && (await tab.isIdle()));
    const [, answer, ...more] = await tab.messages();
    assert.deepEqual(more, []);
    const calls = ['janitor: output-available', 'janitor__delete_file: output-available', 'janitor__delete_file: output-denied'];
    assert.deepEqual(answer.calls, calls);
    assert(!(await tab.shows('error')));
    assert.deepEqual(await files(tab), before.filter(file => file !== deleted));
  };
  await isShown();
  await shoot('answered');
  await tab.page.reload();
  await isShown();
}

/** The demo's page asks for the reason after Deny is pressed, the Next.js one before. */
async function deny(page, question) {
  const reason = question.getByTestId('deny-reason');
  if (!(await reason.isVisible())) await question.getByTestId('deny').click();
  await reason.fill('still needed');
  const confirm = question.getByTestId('deny-confirm');
  await ((await confirm.count()) ? confirm : question.getByTestId('deny')).click();
}

await onBothPages('inner agents', args, async ({ url, screen, runCase, shoot }) => {
  const reloads = screen === 'phone';
  await runCase(reloads ? 'answered after a reload' : 'answered at once', async () => {
    const context = await browser.newContext(SCREENS[screen]);
    try {
      const tab = await Tab.open(context, url);
      await tidyUp({ tab, reloads, shoot: moment => shoot(tab.page, moment) });
      assert.deepEqual(tab.complaints, []);
    } finally {
      await context.close();
    }
  });
});
await browser.close();
