// A daemon for the supervisor's tests: fake_daemon serve|fail PIDFILE --parent-lifeline FD. "serve" appends
// its process id to PIDFILE and ends at the end of the lifeline or by SIGTERM; "fail" says why and exits
// with 3.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int argc, char** argv) {
  if (argc != 5 || std::strcmp(argv[3], "--parent-lifeline") != 0) {
    return 64;
  }
  if (std::strcmp(argv[1], "fail") == 0) {
    std::fprintf(stderr, "no room on this host\n");
    return 3;
  }
  FILE* file = std::fopen(argv[2], "a");
  if (file == nullptr) {
    return 65;
  }
  std::fprintf(file, "%d\n", getpid());
  std::fclose(file);
  char byte = 0;
  while (read(std::atoi(argv[4]), &byte, 1) > 0) {
  }
  return 0;
}
