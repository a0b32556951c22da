// tests/device_count_helper.cpp - prints how many GPUs this process may use; with an argument their
// UUIDs, and what is there after the last.
#include <iostream>

#include "common/launch/device_count.hpp"

int main(int argc, char**) {
  const int devices = ddp::count_cuda_devices();
  if (argc == 1) {
    std::cout << devices << std::endl;
    return 0;
  }
  for (int index = 0; index <= devices; ++index) {
    std::cout << '"' << ddp::cuda_device_uuid(index) << "\"\n";
  }
  return 0;
}
