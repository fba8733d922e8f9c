package manifest_test

import (
	"os"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// BenchmarkDecode reads a file of nine objects.
func BenchmarkDecode(b *testing.B) {
	content, err := os.ReadFile("testdata/good/shop.yaml")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		file, _ := manifest.Decode(manifest.Options{}, "shop.yaml", content)
		if len(file.Objects) != 9 {
			b.Fatal(len(file.Objects))
		}
	}
}
