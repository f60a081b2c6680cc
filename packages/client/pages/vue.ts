// A page with `useStoredChat` of Vue. It has the test ids of `tests/browser`.

import { getToolName, isToolUIPart, type UIMessage } from 'ai';
import { createApp, defineComponent, h, reactive, ref } from 'vue';
import { answerEnd, type Approval, approvalOf, isQuestion, useStoredChat } from 'ui-message-stream-client/vue';

type ChatMessage = UIMessage<unknown, { approval: Approval; progress: string }>;

const parameters = new URLSearchParams(location.search);
const id = parameters.get('chat') ?? '';
const isNew = parameters.has('new');

const Page = defineComponent(() => {
  const chat = useStoredChat<ChatMessage>({ id, isNew });
  const text = ref('');
  const reasons = reactive<Record<string, string>>({});
  const edited = reactive<Record<string, string>>({});
  const typed = (event: Event) => (event.target as HTMLInputElement).value;
  const button = (name: string, click: () => unknown, disabled = false) =>
    h('button', { type: 'button', 'data-testid': name, disabled, onClick: () => void click() }, name);

  const partOf = (part: ChatMessage['parts'][number]) => {
    if (part.type === 'text') return h('p', part.text);
    if (part.type === 'data-progress') return h('p', { 'data-testid': 'progress' }, part.data);
    if (!isToolUIPart(part)) return null;
    const asked = approvalOf(chat.messages, part.toolCallId);
    const name = getToolName(part);
    const input = part.input as { amount?: number } | undefined;
    const approvalId = part.approval?.id ?? '';
    const amount = edited[approvalId] ?? String(input?.amount ?? '');
    const changed = asked?.editable && { input: { ...input, amount: Number(amount) } };
    const reason = reasons[approvalId] || undefined;
    return h('section', { 'data-testid': `tool-${name}`, 'data-state': part.state, 'data-approval': asked?.state }, [
      h('p', [name, asked?.agents && ` asked by ${asked.agents.join(', ')}`]),
      h('pre', { 'data-testid': 'call-input' }, JSON.stringify(asked?.changedInput ?? part.input)),
      asked?.changedInput !== undefined && h('p', `It was: ${JSON.stringify(asked.originalInput)}`),
      h('p', [part.state, part.approval?.reason && `: ${part.approval.reason}`, asked?.approvedBy && `, decided by ${asked.approvedBy}`]),
      part.output !== undefined && h('pre', { 'data-testid': 'output' }, JSON.stringify(part.output)),
      isQuestion(chat.messages, part) &&
        h('p', [
          asked?.editable &&
            h('input', { 'data-testid': 'amount', 'aria-label': 'Amount', value: amount, onInput: (event: Event) => (edited[approvalId] = typed(event)) }),
          button('approve', () => chat.respond(part, { approved: true, ...changed }), asked?.decidedByOthers),
          h('input', { 'data-testid': 'deny-reason', 'aria-label': 'Reason', onInput: (event: Event) => (reasons[approvalId] = typed(event)) }),
          button('deny', () => chat.respond(part, { approved: false, reason })),
        ]),
    ]);
  };
  return () =>
    h('main', [
      h('p', { 'data-testid': 'status' }, chat.status),
      chat.isUnknown && h('p', { 'data-testid': 'unknown' }, 'There is no such chat.'),
      chat.loadOlder && button('older', chat.loadOlder),
      chat.messages.map(message => {
        const attributes = { key: message.id, 'data-testid': `message-${message.role}`, 'data-end': answerEnd(message) };
        return h('article', attributes, message.parts.map(partOf));
      }),
      chat.error && h('p', [h('span', { 'data-testid': 'error' }, chat.error.message), button('retry', chat.retry)]),
      h('input', { 'data-testid': 'input', 'aria-label': 'Message', value: text.value, onInput: (event: Event) => (text.value = typed(event)) }),
      button(
        'send',
        () => {
          void chat.sendMessage({ text: text.value });
          text.value = '';
        },
        chat.isBusy,
      ),
      button('stop', chat.stop, !chat.isBusy),
      button('regenerate', () => chat.regenerate()),
    ]);
});

createApp(Page).mount('#root');
