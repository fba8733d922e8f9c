package kv

import (
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// pairs are n keys of one manifest each.
func pairs(n int) api.KVPairs {
	list := make(api.KVPairs, n)
	for i := range list {
		name := fmt.Sprintf("o%05d", i)
		list[i] = &api.KVPair{Key: "m/" + name + ".yaml", Value: []byte(entry(name, name)), ModifyIndex: uint64(i + 1)}
	}
	return list
}

// BenchmarkApply is what a listing of 1,000 keys costs of which one is another,
// from the listing to the fragment.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			cfg, err := Config{Logger: slog.New(slog.DiscardHandler), Prefix: "m"}.withDefaults()
			if err != nil {
				b.Fatal(err)
			}
			p := newKeyCache(cfg, cfg.Logger)
			list := pairs(n)
			if err := p.apply(list, time.Time{}); err != nil {
				b.Fatal(err)
			}
			p.set.Assemble()
			values := [2][]byte{[]byte(entry("o00050", "one")), []byte(entry("o00050", "two"))}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				i++
				list[50].Value = values[i%2]
				if err := p.apply(list, time.Time{}); err != nil {
					b.Fatal(err)
				}
				p.set.Assemble()
			}
		})
	}
}
