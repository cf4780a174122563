/** Pages of a ledger: it is dense, so each page is found by its number. */

/** Rows of a page; the API's maximum. */
export const PAGE = 100;

export interface EventPage {
  first: number;
  last: number;
}

/** The page with this sequence, up to the newest event. */
export function pageOf(sequence: number, lastSequence: number): EventPage {
  const first = Math.floor((sequence - 1) / PAGE) * PAGE + 1;
  return { first, last: Math.min(first + PAGE - 1, lastSequence) };
}

/** The pages that hold the rows `firstRow` to `lastRow`, counted from 0. */
export function pagesOf(firstRow: number, lastRow: number, lastSequence: number): EventPage[] {
  const pages: EventPage[] = [];
  for (let next = firstRow + 1; next <= Math.min(lastRow + 1, lastSequence); ) {
    const page = pageOf(next, lastSequence);
    pages.push(page);
    next = page.first + PAGE;
  }
  return pages;
}

/** The pages with these ascending sequences. */
export function pagesOfSequences(sequences: number[], lastSequence: number): EventPage[] {
  const pages = new Map<number, EventPage>();
  for (const sequence of sequences) {
    const page = pageOf(sequence, lastSequence);
    pages.set(page.first, page);
  }
  return [...pages.values()];
}
