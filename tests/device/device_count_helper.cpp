// tests/device/device_count_helper.cpp - prints the number of GPUs of this process, and their
// UUIDs.
#include <iostream>

#include "common/device/hardware.hpp"

int main() {
  const int devices = ddp::count_cuda_devices();
  std::cout << devices << '\n';
  for (int index = 0; index < devices; ++index) {
    std::cout << ddp::cuda_device_uuid(index) << '\n';
  }
}
