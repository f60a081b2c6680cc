/** The texts of this package that a user reads. */
export type Texts = {
  unreachable: string;
  lost: string;
  notArrived: string;
  notAccepted: string;
};

const ENGLISH: Texts = {
  unreachable: 'The server cannot be reached.',
  lost: 'The connection to the server was lost.',
  notArrived: 'Your last message has not arrived.',
  notAccepted: 'This question is closed. Your answer does not count.',
};

export const textsOf = (texts: Partial<Texts> = {}): Texts => ({ ...ENGLISH, ...texts });
