package peers;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByRandom;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** Producers: plain, transactional, and in bulk. */
final class Producers {
    private static final AtomicInteger INSTANCES = new AtomicInteger();
    private static final Map<String, CompletableFuture<String>> DECISIONS = new ConcurrentHashMap<>();

    private Producers() {
    }

    static void register(Map<String, Driver.Op> ops) {
        ops.put("producer.start", Producers::start);
        ops.put("producer.send", Producers::send);
        ops.put("producer.sendBatch", Producers::sendBatch);
        ops.put("producer.sendMany", Producers::sendMany);
        ops.put("producer.sendTransaction", Producers::sendTransaction);
        ops.put("transaction.decide", args -> {
            CompletableFuture<String> decision = DECISIONS.remove(args.getString("token"));
            if (decision == null) {
                throw new IllegalArgumentException("nothing waits for " + args.getString("token"));
            }
            return decision.complete(args.getString("state"));
        });
    }

    // Starting.

    /** Signs with the keys that were given, or with those of the file that mqadmin reads; else there is none. */
    static RPCHook hook(JSONObject args) {
        if (args.get("toolsFile") != null) {
            return AclUtils.getAclRPCHook(args.getString("toolsFile"));
        }
        String accessKey = args.getString("accessKey");
        if (accessKey == null) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(accessKey, args.getString("secretKey")));
    }

    /**
     * Sets what every client has.
     *
     * <p>An instance name of its own, so that no two share connections. And a second between
     * heartbeats and between looks at the name server: with Apache's thirty, a client that lost a race
     * at its start, such as for the first heartbeat after a rebalance, makes a test wait that long.
     */
    static void configure(ClientConfig client, JSONObject args) throws Exception {
        client.setNamesrvAddr(args.getString("namesrv"));
        client.setInstanceName("driver-" + INSTANCES.incrementAndGet());
        client.setHeartbeatBrokerInterval(1000);
        client.setPollNameServerInterval(1000);
        Reflect.configure(client, args.getJSONObject("options"));
    }

    private static Object start(JSONObject args) throws Exception {
        String group = args.getString("group");
        boolean trace = args.getBooleanValue("trace");
        JSONObject transaction = args.getJSONObject("transaction");
        DefaultMQProducer producer;
        Rule rule = null;
        if (transaction == null) {
            producer = new DefaultMQProducer(null, group, hook(args), trace, args.getString("traceTopic"));
        } else {
            TransactionMQProducer transactional =
                new TransactionMQProducer(null, group, hook(args), trace, args.getString("traceTopic"));
            rule = new Rule(transaction);
            transactional.setTransactionListener(rule);
            producer = transactional;
        }
        configure(producer, args);
        producer.start();
        String handle = Driver.hold("producer", new Driver.Held() {
            @Override
            public Object target() {
                return producer;
            }

            @Override
            public void shutdown() {
                producer.shutdown();
            }
        });
        if (rule != null) {
            rule.handle = handle;
        }
        return handle;
    }

    // Messages.

    static Message message(JSONObject json) {
        Message message = new Message(json.getString("topic"), body(json));
        if (json.get("tags") != null) {
            message.setTags(json.getString("tags"));
        }
        Object keys = json.get("keys");
        if (keys instanceof JSONArray) {
            Collection<String> several = ((JSONArray) keys).toJavaList(String.class);
            message.setKeys(several);
        } else if (keys != null) {
            message.setKeys((String) keys);
        }
        message.setFlag(json.getIntValue("flag"));
        if (json.get("delayLevel") != null) {
            message.setDelayTimeLevel(json.getIntValue("delayLevel"));
        }
        if (json.get("waitStoreOk") != null) {
            message.setWaitStoreMsgOK(json.getBooleanValue("waitStoreOk"));
        }
        JSONObject properties = json.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
        }
        try {
            // Such as deliverTimeMs or delayTimeSec, which only 5.x messages have.
            Reflect.configure(message, json.getJSONObject("options"));
        } catch (Exception error) {
            throw new IllegalArgumentException(error);
        }
        return message;
    }

    static List<Message> messages(JSONArray array) {
        List<Message> result = new ArrayList<>();
        for (int i = 0; i < array.size(); i++) {
            result.add(message(array.getJSONObject(i)));
        }
        return result;
    }

    private static byte[] body(JSONObject json) {
        String body = json.getString("body");
        if (body != null) {
            return Base64.getDecoder().decode(body);
        }
        String text = json.getString("text");
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    // Sending.

    private static long timeout(DefaultMQProducer producer, JSONObject args) {
        return args.get("timeoutMs") == null ? producer.getSendMsgTimeout() : args.getLongValue("timeoutMs");
    }

    private static MessageQueue queue(JSONObject args) {
        JSONObject queue = args.getJSONObject("queue");
        return queue == null ? null : (MessageQueue) Reflect.convert(queue, MessageQueue.class);
    }

    private static MessageQueueSelector selector(String name) {
        if (name == null) {
            return null;
        }
        switch (name) {
            case "hash":
                return new SelectMessageQueueByHash();
            case "random":
                return new SelectMessageQueueByRandom();
            case "index":
                return (queues, message, arg) -> queues.get(((Number) arg).intValue() % queues.size());
            default:
                throw new IllegalArgumentException("no such selector: " + name);
        }
    }

    private static Object send(JSONObject args) throws Exception {
        DefaultMQProducer producer = Driver.target(args, DefaultMQProducer.class);
        Message message = message(args.getJSONObject("message"));
        MessageQueue queue = queue(args);
        MessageQueueSelector selector = selector(args.getString("selector"));
        Object arg = args.get("arg");
        long timeout = timeout(producer, args);
        String mode = args.getString("mode") == null ? "sync" : args.getString("mode");
        switch (mode) {
            case "sync":
                return queue != null ? producer.send(message, queue, timeout)
                    : selector != null ? producer.send(message, selector, arg, timeout)
                    : producer.send(message, timeout);
            case "oneway":
                if (queue != null) {
                    producer.sendOneway(message, queue);
                } else if (selector != null) {
                    producer.sendOneway(message, selector, arg);
                } else {
                    producer.sendOneway(message);
                }
                return null;
            case "async":
                Answer answer = new Answer();
                if (queue != null) {
                    producer.send(message, queue, answer, timeout);
                } else if (selector != null) {
                    producer.send(message, selector, arg, answer, timeout);
                } else {
                    producer.send(message, answer, timeout);
                }
                return answer.await();
            default:
                throw new IllegalArgumentException("no such mode: " + mode);
        }
    }

    private static Object sendBatch(JSONObject args) throws Exception {
        DefaultMQProducer producer = Driver.target(args, DefaultMQProducer.class);
        List<Message> messages = messages(args.getJSONArray("messages"));
        MessageQueue queue = queue(args);
        long timeout = timeout(producer, args);
        return queue == null ? producer.send(messages, timeout) : producer.send(messages, queue, timeout);
    }

    private static Object sendTransaction(JSONObject args) throws Exception {
        TransactionMQProducer producer = Driver.target(args, TransactionMQProducer.class);
        return producer.sendMessageInTransaction(message(args.getJSONObject("message")), args.get("arg"));
    }

    private static final class Answer implements SendCallback {
        private final CompletableFuture<SendResult> future = new CompletableFuture<>();

        @Override
        public void onSuccess(SendResult result) {
            future.complete(result);
        }

        @Override
        public void onException(Throwable error) {
            future.completeExceptionally(error);
        }

        SendResult await() throws Exception {
            try {
                return future.get();
            } catch (java.util.concurrent.ExecutionException failed) {
                throw failed.getCause() instanceof Exception ? (Exception) failed.getCause() : failed;
            }
        }
    }

    // In bulk.

    private static Object sendMany(JSONObject args) throws Exception {
        Bulk bulk = new Bulk(Driver.target(args, DefaultMQProducer.class), args);
        int threads = Math.max(1, args.getIntValue("threads"));
        CountDownLatch done = new CountDownLatch(threads);
        long begin = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            Thread thread = new Thread(() -> {
                try {
                    bulk.run();
                } finally {
                    done.countDown();
                }
            }, "bulk-" + i);
            thread.setDaemon(true);
            thread.start();
        }
        done.await();
        bulk.drain();
        return bulk.result((System.nanoTime() - begin) / 1e9);
    }

    /** Sends messages first .. first+count-1; the body starts with the number and is padded to size. */
    private static final class Bulk {
        private static final int MAX_IN_FLIGHT = 500;
        private final DefaultMQProducer producer;
        private final String topic;
        private final int first;
        private final int end;
        private final int size;
        private final int batch;
        private final int shards;
        private final String mode;
        private final String keyPrefix;
        private final List<String> tags;
        private final Map<String, Object> properties;
        private final MessageQueue queue;
        private final boolean wantIds;
        private final AtomicInteger next;
        private final AtomicInteger sent = new AtomicInteger();
        private final AtomicInteger failed = new AtomicInteger();
        private final Semaphore inFlight = new Semaphore(MAX_IN_FLIGHT);
        private final List<Object> errors = new ArrayList<>();
        private final List<Object> ids = new ArrayList<>();
        private final Map<String, long[]> perQueue = new TreeMap<>();

        Bulk(DefaultMQProducer producer, JSONObject args) {
            this.producer = producer;
            topic = args.getString("topic");
            first = args.getIntValue("first");
            end = first + args.getIntValue("count");
            size = args.getIntValue("size");
            batch = Math.max(1, args.getIntValue("batch"));
            shards = args.getIntValue("shards");
            mode = args.getString("mode") == null ? "sync" : args.getString("mode");
            keyPrefix = args.getString("keyPrefix");
            JSONArray tagList = args.getJSONArray("tags");
            tags = tagList == null ? null : tagList.toJavaList(String.class);
            properties = args.getJSONObject("properties");
            queue = Producers.queue(args);
            wantIds = args.getBooleanValue("ids");
            next = new AtomicInteger(first);
        }

        void run() {
            for (int index = next.getAndAdd(batch); index < end; index = next.getAndAdd(batch)) {
                int stop = Math.min(end, index + batch);
                try {
                    if (batch > 1) {
                        sendTogether(index, stop);
                    } else {
                        sendOne(index);
                    }
                } catch (Exception error) {
                    fail(stop - index, error);
                }
            }
        }

        private void sendTogether(int begin, int stop) throws Exception {
            List<Message> messages = new ArrayList<>();
            for (int index = begin; index < stop; index++) {
                messages.add(message(index));
            }
            SendResult result = queue == null ? producer.send(messages) : producer.send(messages, queue);
            note(begin, stop - begin, result);
        }

        private void sendOne(int index) throws Exception {
            Message message = message(index);
            if (mode.equals("oneway")) {
                if (queue != null) {
                    producer.sendOneway(message, queue);
                } else {
                    producer.sendOneway(message);
                }
                sent.incrementAndGet();
            } else if (mode.equals("async")) {
                inFlight.acquire();
                SendCallback callback = new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        note(index, 1, result);
                        inFlight.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        fail(1, error);
                        inFlight.release();
                    }
                };
                if (queue != null) {
                    producer.send(message, queue, callback);
                } else {
                    producer.send(message, callback);
                }
            } else if (queue != null) {
                note(index, 1, producer.send(message, queue));
            } else if (shards > 0) {
                note(index, 1, producer.send(message, selector("index"), index % shards));
            } else {
                note(index, 1, producer.send(message));
            }
        }

        private Message message(int index) {
            byte[] digits = Integer.toString(index).getBytes(StandardCharsets.US_ASCII);
            byte[] body = Arrays.copyOf(digits, Math.max(size, digits.length));
            Arrays.fill(body, digits.length, body.length, (byte) '.');
            Message message = new Message(topic, body);
            if (tags != null) {
                message.setTags(tags.get(index % tags.size()));
            }
            if (keyPrefix != null) {
                message.setKeys(keyPrefix + index);
            }
            if (properties != null) {
                properties.forEach((name, value) -> message.putUserProperty(name, String.valueOf(value)));
            }
            return message;
        }

        private synchronized void note(int index, int count, SendResult result) {
            sent.addAndGet(count);
            MessageQueue target = result.getMessageQueue();
            String name = target.getBrokerName() + "/" + target.getQueueId();
            long[] range = perQueue.computeIfAbsent(name, key -> new long[] {Long.MAX_VALUE, Long.MIN_VALUE, 0});
            range[0] = Math.min(range[0], result.getQueueOffset());
            range[1] = Math.max(range[1], result.getQueueOffset() + count - 1);
            range[2] += count;
            if (wantIds) {
                ids.add(Arrays.asList(
                    index, result.getMsgId(), result.getOffsetMsgId(), name, result.getQueueOffset()));
            }
        }

        private synchronized void fail(int count, Throwable error) {
            failed.addAndGet(count);
            if (errors.size() < 5) {
                errors.add(Driver.describe(error));
            }
        }

        void drain() throws InterruptedException {
            inFlight.tryAcquire(MAX_IN_FLIGHT, producer.getSendMsgTimeout() * 4L, TimeUnit.MILLISECONDS);
        }

        synchronized Object result(double seconds) {
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("sent", sent.get());
            result.put("failed", failed.get());
            result.put("seconds", seconds);
            result.put("errors", errors);
            result.put("queues", perQueue);
            if (wantIds) {
                result.put("ids", ids);
            }
            return result;
        }
    }

    // Transactions.

    /**
     * Decides transactions: "local" and "check" are each a state name, or "ask" for an event that
     * Python answers with transaction.decide, or "throw".
     */
    private static final class Rule implements TransactionListener {
        private static final long PATIENCE_SECONDS = 60;
        private final String local;
        private final String check;
        private volatile String handle;

        Rule(JSONObject json) {
            local = json.getString("local") == null ? "COMMIT_MESSAGE" : json.getString("local");
            check = json.getString("check") == null ? "COMMIT_MESSAGE" : json.getString("check");
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
            return decide("transaction.execute", local, message);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return decide("transaction.check", check, message);
        }

        private LocalTransactionState decide(String event, String rule, Message message) {
            String token = "transaction-" + INSTANCES.incrementAndGet();
            CompletableFuture<String> decision = new CompletableFuture<>();
            boolean ask = rule.equals("ask");
            if (ask) {
                DECISIONS.put(token, decision);
            }
            Map<String, Object> data = new LinkedHashMap<>();
            data.put("handle", handle);
            data.put("token", ask ? token : null);
            data.put("message", message);
            Driver.emit(event, data);
            if (rule.equals("throw")) {
                throw new IllegalStateException("told to throw");
            }
            try {
                return LocalTransactionState.valueOf(ask ? decision.get(PATIENCE_SECONDS, TimeUnit.SECONDS) : rule);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }
}
