package agent

import (
	"testing"
	"testing/fstest"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

func TestMemoryIsTheLowestLimit(t *testing.T) {
	t.Parallel()
	const meminfo = "MemTotal:        1004044 kB\nMemFree:          1 kB\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  uint64
	}{
		"unknown":   {nil, 0},
		"host":      {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n"}, 1004044 << 10},
		"cgroup":    {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "536870912\n"}, 512 << 20},
		"parent":    {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "536870912\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 512 << 20},
		"top":       {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n"}, 512 << 20},
		"larger":    {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "99999999999\n"}, 1004044 << 10},
		"version_1": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/a\n"}, 1004044 << 10},
		"outside":   {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/../../x\n"}, 1004044 << 10},
		"nonsense":  {map[string]string{"proc/meminfo": "MemTotal: lots\n"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := fstest.MapFS{}
			for path, content := range c.files {
				root[path] = &fstest.MapFile{Data: []byte(content)}
			}
			if got := memoryOf(root); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

func TestLimitsByMemory(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, c := range map[string]struct {
		memory            uint64
		heap, connections int
		want              bootstrap.Limits
	}{
		"one_gib":       {1004044 << 10, 0, 0, bootstrap.Limits{MaxHeap: 448 * mib, MaxConnections: 7168}},
		"a_little_less": {1000000 << 10, 0, 0, bootstrap.Limits{MaxHeap: 448 * mib, MaxConnections: 7168}},
		"tiny":          {128 * mib, 0, 0, bootstrap.Limits{MaxHeap: 128 * mib, MaxConnections: 2048}},
		"huge":          {1 << 40, 0, 0, bootstrap.Limits{MaxHeap: 1 << 39, MaxConnections: 500_000}},
		"unknown":       {0, 0, 0, bootstrap.Limits{MaxConnections: 500_000}},
		"set":           {1 << 30, 100, 10, bootstrap.Limits{MaxHeap: 100 * mib, MaxConnections: 10}},
		"heap_only":     {1 << 30, 128, 0, bootstrap.Limits{MaxHeap: 128 * mib, MaxConnections: 2048}},
		"off":           {1 << 30, -1, -1, bootstrap.Limits{}},
		"no_heap":       {1 << 30, -1, 0, bootstrap.Limits{MaxConnections: 8192}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := limitsFor(c.memory, c.heap, c.connections); got != c.want {
				t.Errorf("%+v, want %+v", got, c.want)
			}
		})
	}
}
