// A page with `injectStoredChat` of Angular, without zones. It has the test ids of `tests/browser`.

import '@angular/compiler';
import { Component, provideZonelessChangeDetection, signal } from '@angular/core';
import { bootstrapApplication } from '@angular/platform-browser';
import { getToolName, isToolUIPart, type UIMessage } from 'ai';
import { answerEnd, type Approval, approvalOf, type AskingPart, injectStoredChat, isQuestion } from 'ui-message-stream-client/angular';

type ChatMessage = UIMessage<unknown, { approval: Approval; progress: string }>;

const parameters = new URLSearchParams(location.search);

@Component({
  selector: '#root',
  template: `
    <main>
      <p data-testid="status">{{ chat.status }}</p>
      @if (chat.isUnknown) {
        <p data-testid="unknown">There is no such chat.</p>
      }
      @if (chat.loadOlder; as loadOlder) {
        <button data-testid="older" (click)="loadOlder()">Older</button>
      }
      @for (message of chat.messages; track message.id) {
        <article [attr.data-testid]="'message-' + message.role" [attr.data-end]="answerEnd(message)">
          @for (part of message.parts; track $index) {
            @if (part.type === 'text') {
              <p>{{ part.text }}</p>
            } @else if (part.type === 'data-progress') {
              <p data-testid="progress">{{ part.data }}</p>
            } @else if (isToolUIPart(part)) {
              @let asked = approvalOf(chat.messages, part.toolCallId);
              <section
                [attr.data-testid]="'tool-' + getToolName(part)"
                [attr.data-state]="part.state"
                [attr.data-approval]="asked?.state"
              >
                <p>{{ getToolName(part) }}{{ asked?.agents ? ' asked by ' + asked.agents.join(', ') : '' }}</p>
                <pre data-testid="call-input">{{ text(asked?.changedInput ?? part.input) }}</pre>
                @if (asked && asked.changedInput !== undefined) {
                  <p>It was: {{ text(asked.originalInput) }}</p>
                }
                <p>
                  {{ part.state }}{{ part.approval?.reason ? ': ' + part.approval.reason : ''
                  }}{{ asked?.approvedBy ? ', decided by ' + asked.approvedBy : '' }}
                </p>
                @if (part.output !== undefined) {
                  <pre data-testid="output">{{ text(part.output) }}</pre>
                }
                @if (isQuestion(chat.messages, part)) {
                  @if (asked?.editable) {
                    <input #amount data-testid="amount" aria-label="Amount" [value]="part.input.amount" (input)="amounts[part.approval.id] = amount.value" />
                  }
                  <button data-testid="approve" [disabled]="asked?.decidedByOthers" (click)="approve(part, asked)">Approve</button>
                  <input #reason data-testid="deny-reason" aria-label="Reason" />
                  <button data-testid="deny" (click)="chat.respond(part, { approved: false, reason: reason.value || undefined })">
                    Deny
                  </button>
                }
              </section>
            }
          }
        </article>
      }
      @if (chat.error; as error) {
        <span data-testid="error">{{ error.message }}</span><button data-testid="retry" (click)="chat.retry()">Try again</button>
      }
      <input #field data-testid="input" aria-label="Message" [value]="written()" (input)="written.set(field.value)" />
      <button data-testid="send" [disabled]="chat.isBusy" (click)="send()">Send</button>
      <button data-testid="stop" [disabled]="!chat.isBusy" (click)="chat.stop()">Stop</button>
      <button data-testid="regenerate" (click)="chat.regenerate()">Write again</button>
    </main>
  `,
})
class Page {
  readonly chat = injectStoredChat<ChatMessage>({ id: parameters.get('chat') ?? '', isNew: parameters.has('new') });
  readonly written = signal('');
  readonly amounts: Record<string, string> = {};
  readonly answerEnd = answerEnd;
  readonly approvalOf = approvalOf;
  readonly getToolName = getToolName;
  readonly isQuestion = isQuestion;
  readonly isToolUIPart = isToolUIPart;
  readonly text = JSON.stringify;

  approve(part: AskingPart & { input: { amount?: number } }, asked: Approval | undefined) {
    const amount = Number(this.amounts[part.approval?.id ?? ''] ?? part.input.amount);
    void this.chat.respond(part, { approved: true, ...(asked?.editable && { input: { ...part.input, amount } }) });
  }

  send() {
    void this.chat.sendMessage({ text: this.written() });
    this.written.set('');
  }
}

void bootstrapApplication(Page, { providers: [provideZonelessChangeDetection()] });
