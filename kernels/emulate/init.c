// The emulated machine's first and only process: runs a program, prints what it prints, and powers
// off.
//
// Its output, between the lines [start] and [exit CODE], goes to a port of Bochs that prints bytes;
// another ends the emulator. The program's arguments lie in /arguments, each with a zero behind it.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PRINT_PORT = 0xe9, POWER_PORT = 0x8900 };

static void print(const char* text, size_t size) {
    for (size_t i = 0; i < size; i++) outb((unsigned char)text[i], PRINT_PORT);
}

static void power_off(void) {
    for (const char* p = "Shutdown"; *p; p++) outb((unsigned char)*p, POWER_PORT);
    for (;;) pause();
}

static void mount_at(const char* type, const char* folder) {
    mkdir(folder, 0755);
    mount(type, folder, type, 0, 0);
}

static void mount_file_systems(void) {
    mount_at("proc", "/proc");
    mount_at("sysfs", "/sys");
    mount_at("devtmpfs", "/dev");
    mount_at("tmpfs", "/dev/shm");
    mkdir("/tmp", 01777);
}

// At most `most` arguments and a null behind them.
static void read_arguments(char** arguments, int most) {
    static char text[1 << 16];
    FILE* file = fopen("/arguments", "r");
    const size_t size = file ? fread(text, 1, sizeof text - 1, file) : 0;
    int count = 0;
    for (char* p = text; p < text + size && count < most; p += strlen(p) + 1) {
        arguments[count++] = p;
    }
    arguments[count] = NULL;
}

static void run_program(char** arguments, int output) {
    dup2(output, 1);
    dup2(output, 2);
    setenv("PATH", "/usr/bin:/bin", 1);
    setenv("HOME", "/tmp", 1);
    execv(arguments[0], arguments);
    perror(arguments[0]);
    _exit(127);
}

int main(void) {
    iopl(3);
    mount_file_systems();
    char* arguments[1024];
    read_arguments(arguments, 1023);

    int ends[2];
    if (pipe(ends) != 0) power_off();
    print("[start]\n", 8);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        run_program(arguments, ends[1]);
    }
    close(ends[1]);
    char buffer[4096];
    for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
        print(buffer, (size_t)got);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    char line[64];
    print(line, (size_t)snprintf(line, sizeof line, "\n[exit %d]\n", code));
    power_off();
}
