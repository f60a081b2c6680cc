import type { Metadata } from 'next';
import { connection } from 'next/server';
import type { ReactNode } from 'react';
import './globals.css';

export const metadata: Metadata = { title: 'Chat with approvals' };

export default async function RootLayout({ children }: { children: ReactNode }) {
  await connection(); // a page made at build time could not have the nonce of a request, see proxy.ts
  return (
    <html lang="en">
      <body>{children}</body>
    </html>
  );
}
