/* A client of the agent's inbox (docs/inbox.md) in plain POSIX: a turn of a made-up decode loop.

   cc -o client client.c && ./client /run/decodewatch/agent.sock */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static long long now_us(void) { /* the agent's clock: of Linux, since boot, in microseconds */
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void decode(void) { /* where the engine would make a token: 20 ms */
    nanosleep(&(struct timespec){0, 20000000}, NULL);
}

int main(int count, char **words) {
    struct sockaddr_un path = {.sun_family = AF_UNIX};
    char turn[48], line[512];
    if (count != 2 || strlen(words[1]) >= sizeof path.sun_path)
        return fprintf(stderr, "usage: client SOCKET\n"), 2;
    strcpy(path.sun_path, words[1]);
    int link = socket(AF_UNIX, SOCK_STREAM, 0);
    if (link < 0 || connect(link, (struct sockaddr *)&path, sizeof path) != 0)
        return perror(words[1]), 1;
    FILE *from = fdopen(link, "r"), *to = fdopen(dup(link), "w");
    setvbuf(to, NULL, _IOLBF, BUFSIZ); /* a line is sent when it is whole */

    fprintf(to, "{\"type\":\"hello\",\"v\":1,\"name\":\"client.c\",\"engine\":\"made-up\"}\n");
    long long begun = now_us(), first = 0, last = 0, steps = 16;
    snprintf(turn, sizeof turn, "c-%lld-%d", begun, (int)getpid()); /* unique on the device */
    fprintf(to, "{\"type\":\"begin\",\"turn\":\"%s\",\"t\":%lld,\"prompt_tokens\":31}\n",
            turn, begun);
    for (int step = 0; step < steps; step++) { /* a real loop reports once a second */
        char gap[24] = "null"; /* the first token ends the prefill: no gap of decoding */
        decode();
        long long at = now_us();
        if (step) snprintf(gap, sizeof gap, "%lld", at - last);
        else first = at;
        last = at;
        fprintf(to, "{\"type\":\"progress\",\"turn\":\"%s\",\"t\":%lld,\"first\":%d,"
                "\"ttft_us\":%lld,\"steps\":[[%s,1]],\"depth\":%d}\n",
                turn, at, step, first - begun, gap, 32 + step);
    }
    fprintf(to, "{\"type\":\"turn\",\"record\":{\"id\":\"%s\",\"t\":%lld,\"duration_us\":%lld,"
            "\"ttft_us\":%lld,\"decode_us\":%lld,\"prompt_tokens\":31,\"output_tokens\":%lld,"
            "\"first_tokens\":1,\"steps\":%lld,\"shared_tokens\":0,\"token_source\":\"counted\","
            "\"ending\":\"complete\",\"suspended_us\":0,\"concurrency\":1,\"itl\":[]}}\n",
            turn, begun, now_us() - begun, first - begun, last - first, steps, steps);
    while (fgets(line, sizeof line, from)) { /* "stored": the agent keeps it, whatever happens */
        fputs(line, stdout);
        if (!strstr(line, turn)) continue;
        fprintf(to, "{\"type\":\"bye\"}\n"); /* it ends on purpose: nothing vanished */
        return strstr(line, "\"stored\"") ? 0 : 1;
    }
    return fprintf(stderr, "the agent has gone: connect, and send the turn again\n"), 1;
}
