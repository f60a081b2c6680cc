import { chatRoute } from 'ui-message-stream-client/next';

export const { GET, POST, PATCH, DELETE } = chatRoute();
