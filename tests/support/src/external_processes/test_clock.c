// The clock of a Redis in tests: the time in the file that TEST_TIME names, in milliseconds.

#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    long long milliseconds = 0;
    FILE *file = fopen(getenv("TEST_TIME"), "r");
    if (file == NULL || fscanf(file, "%lld", &milliseconds) != 1) abort();
    fclose(file);
    now->tv_sec = milliseconds / 1000;
    now->tv_usec = milliseconds % 1000 * 1000;
    return 0;
}
