// tests/device_count_helper.cpp - prints how many GPUs this process may use.
#include <iostream>

#include "common/launch/device_count.hpp"

int main() {
  std::cout << ddp::count_cuda_devices() << std::endl;
  return 0;
}
