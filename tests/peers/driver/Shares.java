package peers;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** How RocketMQ's own strategies divide queues among members. */
final class Shares {
    private Shares() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("shares", Shares::shares);
    }

    /** For each of "cases" (strategy, queues as [topic, broker, id], members): the shares, by member. */
    private static Object shares(JSONObject args) {
        List<Object> result = new ArrayList<>();
        JSONArray cases = args.getJSONArray("cases");
        for (int i = 0; i < cases.size(); i++) {
            JSONObject one = cases.getJSONObject(i);
            List<MessageQueue> queues = new ArrayList<>();
            JSONArray named = one.getJSONArray("queues");
            for (int j = 0; j < named.size(); j++) {
                JSONArray queue = named.getJSONArray(j);
                queues.add(new MessageQueue(queue.getString(0), queue.getString(1), queue.getIntValue(2)));
            }
            List<String> members = one.getJSONArray("members").toJavaList(String.class);
            AllocateMessageQueueStrategy strategy = strategy(one.getString("strategy"));
            List<Object> shares = new ArrayList<>();
            for (String member : members) {
                List<Object> share = new ArrayList<>();
                List<MessageQueue> given = strategy.allocate("group", member, queues, members);
                for (MessageQueue queue : given) {
                    share.add(List.of(queue.getTopic(), queue.getBrokerName(), queue.getQueueId()));
                }
                shares.add(share);
            }
            result.add(shares);
        }
        return result;
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "average":
                return new AllocateMessageQueueAveragely();
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash();
            case "machine_room":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(List.of("room1", "room2")));
                return rooms;
            default:
                return new AllocateMachineRoomNearby(
                    new AllocateMessageQueueAveragely(), new AllocateMachineRoomNearby.MachineRoomResolver() {
                        @Override
                        public String brokerDeployIn(MessageQueue queue) {
                            return queue.getBrokerName().split("@")[0];
                        }

                        @Override
                        public String consumerDeployIn(String clientId) {
                            return clientId.split("@")[0];
                        }
                    });
        }
    }
}
