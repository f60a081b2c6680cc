import type { NextConfig } from 'next';

const config: NextConfig = {
  async headers() {
    const headers = [{ key: 'x-content-type-options', value: 'nosniff' }];
    return [{ source: '/:path*', headers }];
  },
};

export default config;
