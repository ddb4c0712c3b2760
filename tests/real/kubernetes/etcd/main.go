// etcd of the version that this Kubernetes is released with; distributions have older ones, without which it lacks features.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
