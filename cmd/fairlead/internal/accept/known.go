package accept

import "container/list"

// leastKnown is how many addresses are remembered at least.
const leastKnown = 1 << 14

// known is the addresses from which peers were authenticated last. Its owner
// holds the lock of the [Acceptor].
type known struct {
	most  int
	by    map[string]*list.Element
	order list.List // of string, the latest first
}

func newKnown(connections int) *known {
	return &known{most: max(leastKnown, connections), by: map[string]*list.Element{}}
}

func (k *known) add(group string) {
	if e := k.by[group]; e != nil {
		k.order.MoveToFront(e)
		return
	}
	if len(k.by) >= k.most {
		last := k.order.Back()
		k.order.Remove(last)
		delete(k.by, last.Value.(string)) //nolint:errcheck,forcetypeassert // it has nothing else
	}
	k.by[group] = k.order.PushFront(group)
}

func (k *known) has(group string) bool { return k.by[group] != nil }
