package peers;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers: push with a recorder, lite pull, and the old pull consumer. */
final class Consumers {
    private Consumers() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("push.start", Consumers::startPush);
        ops.put("push.waitCount", args -> push(args).recorder.waitCount(args));
        ops.put("push.drain", args -> push(args).recorder.drain(args));
        ops.put("push.distinct", args -> {
            Set<String> together = new HashSet<>();
            for (Object handle : args.getJSONArray("handles")) {
                JSONObject one = new JSONObject();
                one.put("handle", handle);
                push(one).recorder.addDistinct(together);
            }
            return together.size();
        });
        ops.put("push.leave", args -> {
            push(args).shutdown();
            return push(args).recorder.drain(args);
        });
        ops.put("push.outcome", args -> {
            push(args).recorder.outcome = new Outcome(args);
            return null;
        });
        ops.put("lite.start", Consumers::startLite);
        ops.put("lite.poll", Consumers::poll);
        ops.put("lite.seek", Consumers::seek);
        ops.put("lite.commit", args -> {
            Driver.target(args, DefaultLitePullConsumer.class).commitSync();
            return null;
        });
        ops.put("pull.start", Consumers::startPull);
    }

    // Push.

    private static final class Push implements Driver.Held {
        private final DefaultMQPushConsumer consumer;
        private final Recorder recorder;

        Push(DefaultMQPushConsumer consumer, Recorder recorder) {
            this.consumer = consumer;
            this.recorder = recorder;
        }

        @Override
        public Object target() {
            return consumer;
        }

        @Override
        public void shutdown() {
            consumer.shutdown();
        }
    }

    private static Push push(JSONObject args) {
        return (Push) Driver.held(args);
    }

    private static Object startPush(JSONObject args) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            null, args.getString("group"), Producers.hook(args), strategy(args),
            args.getBooleanValue("trace"), args.getString("traceTopic"));
        Producers.configure(consumer, args);
        JSONArray subscriptions = args.getJSONArray("subscriptions");
        for (int i = 0; i < subscriptions.size(); i++) {
            JSONObject subscription = subscriptions.getJSONObject(i);
            MessageSelector selector = selector(subscription);
            if (selector == null) {
                consumer.subscribe(subscription.getString("topic"), expression(subscription));
            } else {
                consumer.subscribe(subscription.getString("topic"), selector);
            }
        }
        Recorder recorder = new Recorder(args);
        if (args.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) recorder::consume);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) recorder::consume);
        }
        consumer.start();
        String handle = Driver.hold("push", new Push(consumer, recorder));
        recorder.handle = handle;
        return handle;
    }

    private static AllocateMessageQueueStrategy strategy(JSONObject args) throws Exception {
        String name = args.getString("allocate");
        if (name == null) {
            return new AllocateMessageQueueAveragely();
        }
        Class<?> type = Class.forName("org.apache.rocketmq.client.consumer.rebalance." + name);
        return (AllocateMessageQueueStrategy) type.getConstructor().newInstance();
    }

    private static String expression(JSONObject subscription) {
        String expression = subscription.getString("expression");
        return expression == null ? "*" : expression;
    }

    private static MessageSelector selector(JSONObject subscription) {
        boolean sql = "SQL92".equals(subscription.getString("type"));
        return sql ? MessageSelector.bySql(expression(subscription)) : null;
    }

    /** What a listener answers. Replaced as a whole while the consumer runs. */
    private static final class Outcome {
        private final int failTimes;
        private final long delayMillis;
        private final String failure;
        private final Integer delayLevel;

        Outcome(JSONObject json) {
            failTimes = json == null ? 0 : json.getIntValue("failTimes");
            delayMillis = json == null ? 0 : json.getLongValue("delayMs");
            failure = json == null || json.get("failure") == null ? "later" : json.getString("failure");
            delayLevel = json == null ? null : json.getInteger("delayLevel");
        }

        /** Whether this delivery fails: "later" answers so, "throw" throws, "null" answers nothing. */
        boolean fails(List<MessageExt> messages) {
            boolean fails = messages.stream().anyMatch(message -> message.getReconsumeTimes() < failTimes);
            if (fails && failure.equals("throw")) {
                throw new IllegalStateException("told to throw");
            }
            return fails;
        }
    }

    /** Keeps every delivery until Python fetches it. */
    private static final class Recorder {
        private final Deque<Map<String, Object>> records = new ArrayDeque<>();
        private final Set<String> distinct = new HashSet<>();
        private final boolean keepBody;
        private final boolean keep;
        private final boolean events;
        private long count;
        private volatile String handle;
        private volatile Outcome outcome;

        Recorder(JSONObject args) {
            keep = args.get("record") == null || args.getBooleanValue("record");
            keepBody = args.getBooleanValue("body");
            events = args.getBooleanValue("events");
            outcome = new Outcome(args.getJSONObject("outcome"));
        }

        ConsumeConcurrentlyStatus consume(List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            Outcome now = outcome;
            boolean fails = take(messages, now);
            if (!fails) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            if (now.delayLevel != null) {
                context.setDelayLevelWhenNextConsume(now.delayLevel);
            }
            return now.failure.equals("null") ? null : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }

        ConsumeOrderlyStatus consume(List<MessageExt> messages, ConsumeOrderlyContext context) {
            Outcome now = outcome;
            boolean fails = take(messages, now);
            if (!fails) {
                return ConsumeOrderlyStatus.SUCCESS;
            }
            return now.failure.equals("null") ? null : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }

        private boolean take(List<MessageExt> messages, Outcome now) {
            if (now.delayMillis > 0) {
                try {
                    Thread.sleep(now.delayMillis);
                } catch (InterruptedException stopping) {
                    Thread.currentThread().interrupt();
                }
            }
            synchronized (this) {
                for (MessageExt message : messages) {
                    count++;
                    distinct.add(message.getMsgId());
                    if (keep) {
                        Map<String, Object> record = Plain.message(message, keepBody);
                        record.put("receivedAt", System.currentTimeMillis());
                        record.put("thread", Thread.currentThread().getName());
                        records.add(record);
                    }
                }
                notifyAll();
            }
            if (events) {
                for (MessageExt message : messages) {
                    Map<String, Object> data = new LinkedHashMap<>();
                    data.put("handle", handle);
                    data.put("receivedAt", System.currentTimeMillis());
                    data.put("message", message);
                    Driver.emit("message", data);
                }
            }
            return now.fails(messages);
        }

        synchronized Object waitCount(JSONObject args) throws InterruptedException {
            long wanted = args.getLongValue("count");
            boolean byId = args.getBooleanValue("distinct");
            long deadline = System.nanoTime() + args.getLongValue("timeoutMs") * 1_000_000;
            while ((byId ? distinct.size() : count) < wanted) {
                long left = (deadline - System.nanoTime()) / 1_000_000;
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("count", count);
            result.put("distinct", distinct.size());
            result.put("reached", (byId ? distinct.size() : count) >= wanted);
            return result;
        }

        synchronized void addDistinct(Set<String> all) {
            all.addAll(distinct);
        }

        synchronized Object drain(JSONObject args) {
            int most = args.get("max") == null ? Integer.MAX_VALUE : args.getIntValue("max");
            List<Object> result = new ArrayList<>();
            while (!records.isEmpty() && result.size() < most) {
                result.add(records.poll());
            }
            return result;
        }
    }

    // Lite pull.

    private static Object startLite(JSONObject args) throws Exception {
        DefaultLitePullConsumer consumer =
            new DefaultLitePullConsumer(null, args.getString("group"), Producers.hook(args));
        Producers.configure(consumer, args);
        JSONArray subscriptions = args.getJSONArray("subscriptions");
        for (int i = 0; subscriptions != null && i < subscriptions.size(); i++) {
            JSONObject subscription = subscriptions.getJSONObject(i);
            MessageSelector selector = selector(subscription);
            if (selector == null) {
                consumer.subscribe(subscription.getString("topic"), expression(subscription));
            } else {
                consumer.subscribe(subscription.getString("topic"), selector);
            }
        }
        consumer.start();
        JSONArray assign = args.getJSONArray("assign");
        if (assign != null) {
            consumer.assign(assign.toJavaList(MessageQueue.class));
        }
        return Driver.hold("lite", new Driver.Held() {
            @Override
            public Object target() {
                return consumer;
            }

            @Override
            public void shutdown() {
                consumer.shutdown();
            }
        });
    }

    private static Object poll(JSONObject args) {
        DefaultLitePullConsumer consumer = Driver.target(args, DefaultLitePullConsumer.class);
        long timeout = args.get("timeoutMs") == null ? consumer.getPollTimeoutMillis() : args.getLongValue("timeoutMs");
        boolean body = args.get("body") == null || args.getBooleanValue("body");
        List<Object> result = new ArrayList<>();
        for (MessageExt message : consumer.poll(timeout)) {
            result.add(Plain.message(message, body));
        }
        return result;
    }

    private static Object seek(JSONObject args) throws Exception {
        DefaultLitePullConsumer consumer = Driver.target(args, DefaultLitePullConsumer.class);
        MessageQueue queue = args.getObject("queue", MessageQueue.class);
        Object offset = args.get("offset");
        if ("begin".equals(offset)) {
            consumer.seekToBegin(queue);
        } else if ("end".equals(offset)) {
            consumer.seekToEnd(queue);
        } else {
            consumer.seek(queue, ((Number) offset).longValue());
        }
        return null;
    }

    // Pull: everything else about it goes through "call".

    @SuppressWarnings("deprecation")
    private static Object startPull(JSONObject args) throws Exception {
        DefaultMQPullConsumer consumer =
            new DefaultMQPullConsumer(null, args.getString("group"), Producers.hook(args));
        Producers.configure(consumer, args);
        consumer.start();
        return Driver.hold("pull", new Driver.Held() {
            @Override
            public Object target() {
                return consumer;
            }

            @Override
            public void shutdown() {
                consumer.shutdown();
            }
        });
    }
}
