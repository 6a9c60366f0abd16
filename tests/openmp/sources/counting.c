// SPDX-License-Identifier: Apache-2.0
// Four threads that count at once, without an error. Exits with 5.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int count;

static void *work(void *argument) {
  for (int i = 0; i < 100; i++) {
    int *const memory = malloc(1000 + (size_t)i);
    pthread_mutex_lock(&mutex);
    count++;
    pthread_mutex_unlock(&mutex);
    free(memory);
  }
  return argument;
}

int main(void) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    if (pthread_create(&threads[i], NULL, work, NULL) != 0) return 1;
  }
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  printf("%d\n", count);
  return 5;
}
