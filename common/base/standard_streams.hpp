// common/base/standard_streams.hpp - stdin, stdout and stderr that are closed, at either end, or a
// terminal.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace ddp {

/// The first thing in main(). The next file or socket would get the number of a stream that was
/// closed: the program would print into it, and its children take it for their own. It is opened
/// the wrong way round, so that using it is an error as before.
inline void fill_closed_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(descriptor, F_GETFD) == -1) {
      // Takes the lowest number that is free.
      [[maybe_unused]] const int opened =
          open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_WRONLY);
    }
  }
}

/// Whether it is a pipe or a terminal whose other end is closed. May be called in a signal handler.
inline bool is_unread(int descriptor) {
  pollfd stream{descriptor, POLLOUT, 0};
  return poll(&stream, 1, 0) > 0 && (stream.revents & (POLLERR | POLLHUP)) != 0;
}

/// Whether somebody sees what is drawn on stderr.
inline bool draws_on_stderr() {
  const char* const term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

}  // namespace ddp
