package view

import (
	"math/rand/v2"
	"reflect"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// hashContent has a field of every sort that parts and inputs have.
type hashContent struct {
	Text    string
	Number  int32
	Size    uint32
	Flag    bool
	List    []string
	Lists   [][]string
	Map     map[string]string
	Sizes   map[uint32]string
	Maps    []map[string]string
	Inner   hashInner
	Pointer *hashInner
	Message *networking.StringMatch
	Part    *Cluster
	Any     any
}

type hashInner struct {
	A, B string
	L    []string
}

// Values are equal if, and only if, their hashes are: random ones of few letters, so that
// many are nearly the same.
func TestHashesAreOfEqualContent(t *testing.T) {
	t.Parallel()
	const seed = 5
	rnd := rand.New(rand.NewPCG(seed, 5))
	seen := map[mesh.Hash]hashContent{}
	for range 30_000 {
		var v hashContent
		for range 1 + rnd.IntN(2) {
			set(rnd, reflect.ValueOf(&v).Elem().Field(rnd.IntN(reflect.TypeFor[hashContent]().NumField())))
		}
		h := contentHash("x", &v)
		if was, ok := seen[h]; ok && !reflect.DeepEqual(was, v) {
			t.Fatalf("seed %d: %+v and %+v have one hash", seed, was, v)
		}
		if again := contentHash("x", v); again != h {
			t.Fatalf("seed %d: %+v has two hashes", seed, v)
		}
		seen[h] = v
	}
	if len(seen) < 1000 {
		t.Errorf("only %d different values", len(seen))
	}
	one := hashContent{Maps: []map[string]string{{"a": "1", "b": "2"}, {"c": "3"}}}
	two := hashContent{Maps: []map[string]string{{"a": "1"}, {"b": "2", "c": "3"}}}
	if contentHash("x", one) == contentHash("x", two) {
		t.Error("entries of one map are taken for those of the next")
	}
}

// set fills a value with short random content. Lists and maps are never empty and nil by
// turns: their hashes do not tell these apart.
func set(rnd *rand.Rand, v reflect.Value) {
	text := func() string { return []string{"a", "b", "aa", "ab", "ba", ""}[rnd.IntN(6)] }
	switch v.Interface().(type) {
	case *networking.StringMatch:
		v.Set(reflect.ValueOf([]*networking.StringMatch{
			nil, {MatchType: &networking.StringMatch_Exact{Exact: text()}}, {MatchType: &networking.StringMatch_Prefix{Prefix: text()}},
		}[rnd.IntN(3)]))
		return
	case *Cluster:
		c := &Cluster{}
		c.seal(mesh.Hash{byte(rnd.IntN(3))})
		v.Set(reflect.ValueOf(c))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text())
	case reflect.Int32:
		v.SetInt(int64(rnd.IntN(3)))
	case reflect.Uint32:
		v.SetUint(uint64(rnd.IntN(3)))
	case reflect.Bool:
		v.SetBool(rnd.IntN(2) == 0)
	case reflect.Slice:
		n := 1 + rnd.IntN(3)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			set(rnd, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 1 + rnd.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			set(rnd, key)
			set(rnd, value)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		set(rnd, v.Field(rnd.IntN(v.NumField())))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if rnd.IntN(3) > 0 {
			set(rnd, v.Elem())
		}
	case reflect.Interface:
		v.Set(reflect.ValueOf([]any{"a", int32(1), uint32(1), true, []string{"a"}, hashInner{A: "a"}}[rnd.IntN(6)]))
	default:
		panic("no values for " + v.Type().String())
	}
}
