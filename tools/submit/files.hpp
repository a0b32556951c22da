// tools/submit/files.hpp - files and folders that appear whole or not at all, without locks.
#pragma once

#include <string>

namespace ddp::submit {

// Each writes under another name that starts with a dot, has the disk take it (fsync), and then
// gives it its name in one step. A process that is killed leaves such a dot file behind at most.

/// Whoever reads `path` finds the old text or the new one; after a power failure too, and then it
/// may be the old one. That is never wrong here, only late: the scheduler is asked again.
/// @throws Error if it cannot be written
void replace_file(const std::string& path, const std::string& text);

/// @return false if `path` is there already: of several that try, one wins
/// @throws Error if it cannot be written
bool create_file(const std::string& path, const std::string& text);

/// A folder with one file in it.
/// @return false if `folder` is there already: of several that try, one wins
/// @throws Error if it cannot be written
bool create_folder(const std::string& folder, const std::string& file, const std::string& text);

/// @throws Error if it cannot be made
void make_folders(const std::string& folder);

/// 16 random hex digits: no two of them are ever the same.
std::string random_id();

}  // namespace ddp::submit
