// SPDX-License-Identifier: Apache-2.0
// The parts of UCX's harness that its test needs, over googletest alone.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#define UCS_TIME_H  // its clock reads the processor's counter, and needs the library for the counter's rate
extern "C" {
#include <ucs/sys/math.h>
#include <ucs/type/status.h>
}
typedef unsigned long ucs_time_t;
inline ucs_time_t ucs_get_time() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
inline double ucs_time_to_nsec(ucs_time_t time) { return time; }

namespace ucs {

class test : public testing::Test {
 protected:
  virtual void init() {}
  virtual void cleanup() {}
  void SetUp() override { init(); }
  void TearDown() override { cleanup(); }
};

template <class T>
class ptr_vector {
 public:
  struct const_iterator : std::vector<std::unique_ptr<T>>::const_iterator {
    using Base = typename std::vector<std::unique_ptr<T>>::const_iterator;
    const_iterator(Base at) : Base(at) {}
    T* operator*() const { return Base::operator*().get(); }
  };
  void push_back(T* each) { all_.emplace_back(each); }
  const_iterator begin() const { return all_.begin(); }
  const_iterator end() const { return all_.end(); }

 private:
  std::vector<std::unique_ptr<T>> all_;
};

inline int rand() { return ::rand(); }
inline int test_time_multiplier() { return 1; }

struct message {
  ~message() { std::cout << std::endl; }
};
template <class T>
message const& operator<<(message const& to, T const& each) {
  std::cout << each;
  return to;
}
inline message const& operator<<(message const& to, std::ios_base& (*each)(std::ios_base&)) {
  std::cout << each;
  return to;
}

}  // namespace ucs

#define UCS_TEST_MESSAGE ucs::message()
#define ASSERT_UCS_OK(status, ...) ASSERT_EQ(UCS_OK, status) __VA_ARGS__
#define UCS_TEST_F(fixture, name) TEST_F(fixture, name)
#define UCS_TEST_SKIP_COND_F(fixture, name, condition) \
  class fixture##_##name##_checked : public fixture {  \
   protected:                                          \
    void if_wanted() {                                 \
      if (condition) GTEST_SKIP() << #condition;       \
      body();                                          \
    }                                                  \
    void body();                                       \
  };                                                   \
  TEST_F(fixture##_##name##_checked, name) { if_wanted(); } \
  void fixture##_##name##_checked::body()
