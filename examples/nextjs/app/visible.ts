/**
 * Spells out characters that cannot be seen or change how others look, so that users see exactly
 * what they approve.
 */
export function visible(text: string): string {
  return text.replace(
    /[\p{Cf}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\p{Cs}\u2800\0-\x08\x0b-\x1f\x7f-\x9f]/gu,
    character => `\\u{${character.codePointAt(0)?.toString(16)}}`,
  );
}

/** A tool's input or output as text. */
export function visibleJson(value: unknown): string {
  return visible(JSON.stringify(value, null, 2) ?? '');
}
